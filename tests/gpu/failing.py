"""What one rank does in the tests of failures: `python failing.py NAME...`. Ours alone."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torchcomms

RANK = int(os.environ["RANK"])
SUM = torchcomms.ReduceOp.SUM

os.environ.setdefault("TORCHCOMM_ABORT_ON_ERROR", "0")


def made(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).cuda()


def comm(seconds: float = 60, name: str = "tested", **hints: str) -> torchcomms.TorchComm:
    torch.cuda.set_device(RANK)
    return torchcomms.new_comm(
        "nccl",
        torch.device("cuda", RANK),
        name=name,
        timeout=datetime.timedelta(seconds=seconds),
        hints=hints,
    )


def first(tested: torchcomms.TorchComm) -> None:
    tensor = made([1.0])
    tested.all_reduce(tensor, SUM)
    assert tensor.item() == 2.0


def failed(operation) -> None:
    try:
        operation()
    except (RuntimeError, ValueError) as error:
        print("FAILED", type(error).__name__, error, flush=True)
        return
    raise AssertionError("did not fail")


def over(tested: torchcomms.TorchComm) -> None:
    """A failed communicator raises its cause again, and can be put away."""
    failed(lambda: tested.all_reduce(made([1.0]), SUM))
    tested.abort()
    tested.finalize()
    print("STILL HERE", flush=True)


def board() -> dist.TCPStore:
    """The store that communicators meet at, which rank 0 serves once it has made one."""
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)


def until_over() -> None:
    """Waits until rank 0 has seen what it was to see, or has ended."""
    # Its end is the end of its store.
    with contextlib.suppress(dist.DistError):
        board().wait(["over"], datetime.timedelta(seconds=60))


def time_out() -> None:
    tested = comm(seconds=2)
    tested.register_abort_hook(lambda: print("THE HOOK", flush=True))
    first(tested)
    if RANK == 0:
        failed(lambda: tested.all_reduce(made([1.0]), SUM, async_op=True).wait_blocking())
        over(tested)
        board().set("over", "")
    else:
        until_over()
        tested.abort()


def killed() -> None:
    tested = comm(seconds=5)
    first(tested)
    if RANK == 1:
        os.kill(os.getpid(), 9)
    failed(lambda: tested.all_reduce(made([1.0]), SUM, async_op=True).wait_blocking())
    over(tested)


def asynchronous_error() -> None:
    tested = comm(seconds=20)
    first(tested)
    if RANK == 0:
        failed(lambda: tested.all_reduce(made([1.0]), SUM, async_op=True).wait_blocking())
        over(tested)
        board().set("over", "")
    else:
        until_over()
        tested.abort()


def never_joins() -> None:
    if RANK == 0:
        failed(lambda: comm(seconds=2))


def aborted() -> None:
    tested = comm()
    first(tested)
    if RANK == 0:
        work = tested.all_reduce(made([1.0]), SUM, async_op=True)
        threading.Timer(0.5, tested.abort).start()
        failed(work.wait_blocking)
        tested.finalize()
        print("STILL HERE", flush=True)
        board().set("over", "")
    else:
        until_over()
        tested.abort()


def refused() -> None:
    tested = comm()
    ints = torch.tensor([1, 2], dtype=torch.int32).cuda()
    op = torchcomms.ReduceOp
    shorts = torch.tensor([1, 2], dtype=torch.int16).cuda()
    elsewhere = torch.empty(2, device=f"cuda:{1 - RANK}")
    cases = [
        ("BAND of int32", lambda: tested.all_reduce(ints, op.BAND)),
        ("BAND of float32", lambda: tested.all_reduce(made([1.0]), op.BAND)),
        ("SUM of int16", lambda: tested.all_reduce(shorts, op.SUM)),
        ("wrong device", lambda: tested.all_reduce(torch.ones(2), op.SUM)),
        ("wrong device", lambda: tested.all_reduce(elsewhere, op.SUM)),
        ("root is not a rank", lambda: tested.broadcast(ints, 7)),
        ("serves cuda tensors", lambda: torchcomms.new_comm("nccl", torch.device("cpu"))),
        ("device 9", lambda: torchcomms.new_comm("nccl", torch.device("cuda", 9), name="none")),
    ]
    for words, operation in cases:
        with pytest.raises((RuntimeError, ValueError), match=words):
            operation()
    first(tested)
    graph, tensor = torch.cuda.CUDAGraph(), made([1.0])
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        with pytest.raises(NotImplementedError, match="a barrier blocks the host"):
            tested.barrier()
        # The capture goes on.
        tested.all_reduce(tensor, SUM)
    graph.replay()
    torch.cuda.synchronize()
    assert tensor.item() == 2.0
    del graph
    tested.finalize()
    tested.finalize()
    print("STILL HERE", flush=True)


def wished() -> None:
    """The hints of a split reach NCCL's configuration; one that does not fit is refused on all."""
    tested = comm(max_ctas="3")
    first(tested)
    for ranks in ([1, 0], [0]):
        with pytest.raises(ValueError, match=r'min_ctas="many".*a number'):
            tested.split(ranks, "unfit", hints={"min_ctas": "many"})
    # The simulator refuses this pair, and `max_ctas` is the communicator's.
    with pytest.raises((RuntimeError, ValueError), match="minCTAs is larger than maxCTAs"):
        tested.split([0, 1], "too many", hints={"min_ctas": "9"})
    first(tested)
    part = tested.split([1, 0], "wished", hints={"minCTAs": "9", "max_ctas": "16"})
    first(part)
    part.finalize()
    tested.finalize()
    print("STILL HERE", flush=True)


def polled() -> None:
    """A communicator whose calls do not block: the simulator refuses one that comes too early."""
    tested = comm(blocking="false")
    for round_ in range(20):
        first(tested)
        part = tested.split([1, 0], f"turned {round_}")
        assert part.get_rank() == 1 - RANK
        tensor = made([float(part.get_rank())])
        part.broadcast(tensor, 0)
        assert tensor.item() == 0.0
        batch = part.batch_op_create()
        got = made([-1.0])
        batch.send(made([float(RANK)]), RANK)
        batch.recv(got, RANK)
        batch.issue()
        assert got.item() == 1.0 - RANK
        alone = tested.split([RANK], f"alone {round_}")
        alone.barrier()
        left = tested.split([0], f"left {round_}") if RANK == 0 else tested.split([], "none")
        assert (left is None) == (RANK == 1)
        for some in (left, alone, part):
            if some is not None:
                some.finalize()
    tested.finalize()
    print("STILL HERE", flush=True)


def no_split() -> None:
    tested = comm()
    failed(lambda: tested.split([0, 1], "half"))
    first(tested)
    tested.finalize()
    print("STILL HERE", flush=True)


def suspended() -> None:
    """A communicator that gave its memory up refuses operations until it has it again."""
    from torchcomms._comms import _BackendWrapper

    tested = comm()
    first(tested)
    stats = tested.memory_stats()
    assert stats["suspended"] == 0
    assert stats["total"] == stats["suspend"] + stats["persist"] > stats["suspend"] > 0, stats
    for face in (tested, _BackendWrapper(tested)):
        late = tested.all_reduce(made([1.0]), SUM, async_op=True)
        face.suspend()
        assert late.is_completed()
        face.suspend()
        assert face.memory_stats()["suspended"] == 1
        with pytest.raises(RuntimeError, match=r"suspended.*resume it first"):
            tested.all_reduce(made([1.0]), SUM)
        with pytest.raises(RuntimeError, match="suspended"):
            tested.split([0, 1], "half")
        face.resume()
        face.resume()
        assert face.memory_stats()["suspended"] == 0
        first(tested)
    graph, tensor = torch.cuda.CUDAGraph(), made([1.0])
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tested.all_reduce(tensor, SUM)
    with pytest.raises(RuntimeError, match="a captured graph uses the communicator's memory"):
        tested.suspend()
    del graph
    # The host has nothing of the kind.
    host = torchcomms.new_comm("gloo", torch.device("cpu"), name="host")
    for refused_ in (host.suspend, host.resume, host.memory_stats, host.get_nccl_comm_ptr):
        with pytest.raises(NotImplementedError, match="not supported: this engine"):
            refused_()
    host.finalize()
    print("STILL HERE", flush=True)


def suspended_at_the_end() -> None:
    tested = comm()
    first(tested)
    tested.suspend()
    tested.finalize()
    print("STILL HERE", flush=True)


def no_suspension() -> None:
    tested = comm()
    for refused_ in (tested.suspend, tested.resume, tested.memory_stats):
        failed(refused_)
    first(tested)
    tested.finalize()
    print("STILL HERE", flush=True)


def registered() -> None:
    """Memory pools without memory, and of nobody; and what an abort does to registrations."""
    tested = comm()
    first(tested)
    count = ctypes.CDLL("libnccl.so.2").simgpuNcclRegistered
    count.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    pool = torch.cuda.MemPool(torchcomms.get_mem_allocator("nccl"))
    with pytest.raises(ValueError, match="the pool has no memory on cuda"):
        tested.register_mem_pool(pool)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(1000, device="cuda")
    with pytest.raises(NotImplementedError, match="symm=True"):
        tested.register_mem_pool(pool, symm=True)
    with pytest.raises(ValueError, match="not registered"):
        tested.deregister_mem_pool(pool)
    tested.register_mem_pool(pool)
    assert count(tensor.data_ptr(), tensor.nbytes) == 1
    kept = weakref.ref(pool)
    del pool
    assert kept() is not None, "the communicator keeps the pool"
    tested.abort()
    deadline = time.monotonic() + 60
    while count(0, 0) or kept() is not None:
        assert time.monotonic() < deadline, (count(0, 0), kept())
        time.sleep(0.01)
    print("STILL HERE", flush=True)


def published() -> None:
    """torch's symmetric memory is told of the communicator under it."""
    from torch.distributed._symmetric_memory._nccl import register_external_nccl_comm

    tested = comm()
    pointer = tested.get_nccl_comm_ptr()
    for _round in range(2):
        told = register_external_nccl_comm("published", pointer, tested.get_device(), tested)
        told.unregister()
    first(tested)
    tested.finalize()
    failed(tested.get_nccl_comm_ptr)
    print("STILL HERE", flush=True)


def revoking() -> bool:
    """Whether a thread of this process is in a revocation."""
    tasks = Path("/proc/self/task").glob("*/comm")
    return any(task.read_text().strip() == "fc-revoking" for task in tasks)


def slow_revoke() -> None:
    """A revocation that takes six seconds (SIMGPU_SLOW_REVOKE=0:6000) is not waited for."""
    tested = comm(seconds=1)
    first(tested)
    if RANK == 0:
        failed(lambda: tested.all_reduce(made([1.0]), SUM, async_op=True).wait_blocking())
        assert revoking(), "it was waited for"
        over(tested)
        board().set("over", "")
    else:
        until_over()
        tested.abort()
    again = comm(name="again")
    first(again)
    # The thread that was left behind gives the communicator up when it gets there.
    deadline = time.monotonic() + 60
    while revoking():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first(again)
    again.finalize()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print("DONE", name, flush=True)
