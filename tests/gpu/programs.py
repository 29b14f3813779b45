"""What one rank does in the tests on the simulated GPU: `python programs.py [NAME...]`.

Each program asserts what it can know by itself and returns plain data, which the tests compare
between torch's own nccl and ours: the same program, the same simulator, one switch (`FC_SIDE`).
Rank and size come from RANK and WORLD_SIZE. Kernels cannot be launched on the simulator, so values
are made on the host and copied.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
OURS = os.environ.get("FC_SIDE", "ours") == "ours"
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@functools.cache
def meeting() -> dist.TCPStore:
    """One for all groups of the process: a server that is opened again would be met too late."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, SIZE, RANK == 0)


JOINED = itertools.count()


def join(backend: str = "nccl", seconds: float = 60) -> None:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"group {next(JOINED)}", meeting()),
        rank=RANK,
        world_size=SIZE,
        device_id=device() if backend == "nccl" else None,
        timeout=datetime.timedelta(seconds=seconds),
    )


def made(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).cuda()


def empty(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=device())


def seen(tensor: torch.Tensor) -> Any:
    host = tensor.cpu()
    if host.dtype in (torch.complex64, torch.complex128):
        host = torch.view_as_real(host)
    return host.to(torch.float64).tolist() if host.is_floating_point() else host.tolist()


class Host:
    """Functions that the simulated device runs on a stream, as slow kernels."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._kept: list[Any] = []

    def on(self, stream: torch.cuda.Stream, function: Callable[[], None]) -> None:
        call = self._type(lambda _context: function())
        self._kept.append(call)
        handle = ctypes.c_void_p(stream.cuda_stream)
        result = self._driver.cuLaunchHostFunc(handle, call, None)
        assert result == 0, result

    def fill(self, stream: torch.cuda.Stream, tensor: torch.Tensor, value: int) -> None:
        """Sets every byte of `tensor` on `stream`."""
        address, size = tensor.data_ptr(), tensor.nbytes
        self.on(stream, lambda: ctypes.memset(address, value, size) and None)


# ---- collectives

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}

# What becomes of a 2 from each of so many ranks.
PAIRS = {
    "sum": lambda ranks: 2 * ranks,
    "product": lambda ranks: 2**ranks,
    "min": lambda _ranks: 2,
    "max": lambda _ranks: 2,
}


def waited(work: Any) -> None:
    if work is not None:
        work.wait()


@program
def reductions() -> Any:
    join()
    seen_values = {}
    for dtype in DTYPES:
        for name, op in OPS.items():
            for async_op in (False, True):
                values = [RANK + 1, 2, RANK + 3]
                tensor = made(values, dtype)
                waited(dist.all_reduce(tensor, op, async_op=async_op))
                key = f"all_reduce {dtype} {name} {async_op}"
                seen_values[key] = seen(tensor)
                assert seen(tensor)[1] == PAIRS[name](SIZE), key
            tensor = made([RANK + 1, RANK + 2], dtype)
            dist.reduce(tensor, SIZE - 1, op)
            if RANK == SIZE - 1:
                seen_values[f"reduce {dtype} {name}"] = seen(tensor)
            tensor = made([rank + RANK + 1 for rank in range(SIZE)], dtype)
            out = empty(1, dtype)
            dist.reduce_scatter_tensor(out, tensor, op)
            seen_values[f"reduce_scatter_tensor {dtype} {name}"] = seen(out)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = made([RANK + 1.0, 4.0], dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        seen_values[f"average {dtype}"] = seen(tensor)
        tensor = made([RANK + 1.0, 4.0], dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        seen_values[f"premul {dtype}"] = seen(tensor)
        assert seen(tensor)[1] == 2.0 * SIZE
    tensor = made([RANK == 0, False, True], torch.bool)
    dist.all_reduce(tensor)
    assert seen(tensor) == [True, False, True]
    assert seen_values["all_reduce torch.int64 min True"] == [1, 2, 3]
    assert seen_values["all_reduce torch.int64 max True"] == [SIZE, 2, SIZE + 2]
    total = sum(range(1, SIZE + 1))
    assert seen_values["all_reduce torch.int64 sum False"] == [total, 2 * SIZE, total + 2 * SIZE]
    dist.destroy_process_group()
    return seen_values


def moved(dtype: torch.dtype, async_op: bool) -> dict[str, Any]:
    def given(*numbers: int) -> list[Any]:
        return torch.tensor(numbers).to(dtype).tolist()

    found, expected = {}, {}
    tensor = made([RANK, 1], dtype)
    waited(dist.broadcast(tensor, SIZE - 1, async_op=async_op))
    found["broadcast"], expected["broadcast"] = tensor, given(SIZE - 1, 1)
    parts = [empty(2, dtype) for _ in range(SIZE)]
    waited(dist.all_gather(parts, made([RANK, 2], dtype), async_op=async_op))
    found["all_gather"] = parts[SIZE - 1]
    expected["all_gather"] = given(SIZE - 1, 2)
    whole = empty(2 * SIZE, dtype)
    waited(dist.all_gather_into_tensor(whole, made([RANK, 3], dtype), async_op=async_op))
    found["all_gather_into_tensor"] = whole
    expected["all_gather_into_tensor"] = given(*(n for rank in range(SIZE) for n in (rank, 3)))
    out = empty(SIZE, dtype)
    mine = made([10 * RANK + rank for rank in range(SIZE)], dtype)
    waited(dist.all_to_all_single(out, mine, async_op=async_op))
    found["all_to_all_single"] = out
    expected["all_to_all_single"] = given(*(10 * rank + RANK for rank in range(SIZE)))
    outs = [empty(1, dtype) for _ in range(SIZE)]
    ins = [made([10 * RANK + rank], dtype) for rank in range(SIZE)]
    waited(dist.all_to_all(outs, ins, async_op=async_op))
    found["all_to_all"], expected["all_to_all"] = outs[0], given(RANK)
    root = RANK == SIZE - 1
    parts = [empty(1, dtype) for _ in range(SIZE)] if root else None
    waited(dist.gather(made([RANK], dtype), parts, SIZE - 1, async_op=async_op))
    if parts:
        found["gather"], expected["gather"] = parts[1], given(1)
    out = empty(1, dtype)
    give = [made([rank], dtype) for rank in range(SIZE)] if root else None
    waited(dist.scatter(out, give, SIZE - 1, async_op=async_op))
    found["scatter"], expected["scatter"] = out, given(RANK)
    values = {name: tensor.cpu().tolist() for name, tensor in found.items()}
    assert values == expected, (dtype, async_op, values, expected)
    return values


@program
def moves() -> Any:
    join()
    values = {
        f"{dtype} {async_op}": moved(dtype, async_op)
        for dtype in [*DTYPES, torch.bool]
        for async_op in (False, True)
    }
    dist.barrier()
    dist.destroy_process_group()
    return values


@program
def unequal_parts() -> Any:
    join()
    lengths = [rank + 1 for rank in range(SIZE)]
    values: dict[str, Any] = {}
    outs = [empty(length) for length in lengths]
    dist.all_gather(outs, made([float(RANK)] * lengths[RANK]))
    values["all_gather"] = [seen(part) for part in outs]
    assert values["all_gather"] == [[float(r)] * lengths[r] for r in range(SIZE)]
    out = empty(lengths[RANK])
    dist.reduce_scatter(out, [made([float(RANK + 1)] * length) for length in lengths])
    values["reduce_scatter"] = seen(out)
    assert values["reduce_scatter"] == [float(sum(range(1, SIZE + 1)))] * lengths[RANK]
    gives = [(RANK + rank) % 3 for rank in range(SIZE)]
    out = empty(sum(gives))
    mine = made([float(10 * RANK + rank) for rank in range(SIZE) for _ in range(gives[rank])])
    dist.all_to_all_single(out, mine, gives, gives)
    values["all_to_all_single"] = seen(out)
    dist.destroy_process_group()
    return values


@program
def messages() -> Any:
    join()
    big = 300_000
    if RANK == 0:
        dist.send(made([42.0] * big), 1)
    elif RANK == 1:
        got = empty(big)
        dist.recv(got, 0)
        assert got.cpu().eq(42).all()
    mine, theirs = made([float(RANK)] * big), empty(big)
    short, words = made([RANK, 7], torch.int64), empty(2, torch.int64)
    operations = [
        dist.P2POp(dist.isend, mine, NEXT),
        dist.P2POp(dist.irecv, theirs, BEFORE),
        dist.P2POp(dist.isend, short, NEXT),
        dist.P2POp(dist.irecv, words, BEFORE),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert theirs.cpu().eq(BEFORE).all()
    assert seen(words) == [BEFORE, 7]
    dist.destroy_process_group()
    return seen(words)


@program
def coalesced() -> Any:
    join()
    tensors = [made([float(RANK + index)]) for index in range(3)]
    with dist._coalescing_manager(device=device(), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    values = [seen(tensor) for tensor in tensors]
    outs = [empty(SIZE) for _ in range(2)]
    with dist._coalescing_manager(device=device()):
        for index, out in enumerate(outs):
            dist.all_gather_into_tensor(out, made([float(RANK + index)]))
    values += [seen(out) for out in outs]
    dist.destroy_process_group()
    return values


# ---- groups


@program
def groups() -> Any:
    join()
    values: dict[str, Any] = {}
    pair = dist.new_group([0, SIZE - 1])
    if RANK in (0, SIZE - 1):
        tensor = made([RANK + 1.0])
        dist.all_reduce(tensor, group=pair)
        values["pair"] = seen(tensor)
        assert values["pair"] == [SIZE + 1.0]
    halves = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
    half = dist.split_group(split_ranks=halves)
    tensor = made([RANK + 1.0])
    dist.all_reduce(tensor, group=half)
    values["half"] = seen(tensor)
    mine = halves[0] if RANK < SIZE // 2 else halves[1]
    assert values["half"] == [float(sum(rank + 1 for rank in mine))]
    dist.all_reduce(tensor)
    values["all"] = seen(tensor)
    dist.destroy_process_group()
    return values


@program
def both_devices() -> Any:
    join("cpu:gloo,cuda:nccl")
    here, there = torch.tensor([RANK + 1.0]), made([RANK + 1.0])
    dist.all_reduce(here)
    dist.all_reduce(there)
    assert seen(here) == seen(there) == [float(sum(range(1, SIZE + 1)))]
    if OURS:
        import torchcomms

        facts = torchcomms.engine_info()["groups"]
        served = {group["device"]: group["communicator"]["engine"] for group in facts}
        assert served == {"cpu": "host", "cuda": "nccl"}, served
    dist.destroy_process_group()
    return seen(there)


@program
def made_again() -> Any:
    for round_ in range(3):
        join()
        tensor = made([float(RANK + round_)])
        dist.all_reduce(tensor)
        assert seen(tensor) == [float(sum(range(SIZE)) + SIZE * round_)]
        dist.destroy_process_group()
    return None


# ---- streams


@program
def a_slow_producer_is_waited_for() -> Any:
    """What is on the caller's stream comes first, whether the operation runs there or beside."""
    join()
    host, values = Host(), []
    for async_op in (False, True):
        tensor = made([0] * 64, torch.uint8)
        producer = torch.cuda.Stream()
        started = threading.Event()
        with torch.cuda.stream(producer):
            host.on(producer, lambda event=started: event.wait(60) and None)
            host.fill(producer, tensor, RANK + 1)
            work = dist.all_reduce(tensor, async_op=async_op)
            started.set()
            waited(work)
            values.append(seen(tensor)[:2])
    total = sum(range(1, SIZE + 1))
    assert values == [[total, total]] * 2, values
    dist.destroy_process_group()
    return values


@program
def operations_keep_their_order_on_all_streams() -> Any:
    """One after the other from several streams: the second sees what the first left."""
    join()
    tensor = made([RANK + 1], torch.int64)
    streams = [torch.cuda.Stream() for _ in range(3)]
    current = torch.cuda.current_stream()
    works = []
    for round_ in range(9):
        stream = streams[round_ % 3]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=round_ % 2 == 1)
            works.append(work)
            waited(work)
            dist.all_reduce(tensor)
        current = stream
    torch.cuda.synchronize()
    dist.destroy_process_group()
    assert seen(tensor) == [SIZE**10]
    return seen(tensor)


@program
def operations_do_not_overtake_one_another() -> Any:
    """The second is on a stream that is free, and still comes after the first, which is held up."""
    join()
    if OURS:
        host, gate = Host(), threading.Event()
        tensor = made([RANK + 1], torch.int64)
        held, free = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(held):
            host.on(held, lambda: gate.wait(60) and None)
            dist.all_reduce(tensor)
        with torch.cuda.stream(free):
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        # Time for the second to go wrong.
        threading.Timer(0.5, gate.set).start()
        torch.cuda.synchronize()
        assert seen(tensor) == [sum(range(1, SIZE + 1))]
    dist.destroy_process_group()
    return None


@program
def a_wait_is_for_the_current_stream_alone() -> Any:
    """`wait` does not block the host, and holds back the stream it was called on."""
    join()
    host = Host()
    gate, beside = threading.Event(), threading.Event()
    tensor = made([1] * 8, torch.uint8)
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        host.on(producer, lambda: gate.wait(60) and None)
        work = dist.all_reduce(tensor, async_op=True)
    reader = torch.cuda.Stream()
    order: list[str] = []
    with torch.cuda.stream(reader):
        work.wait()
        host.on(reader, lambda: order.append("reader"))
    assert not work.is_completed()

    def pass_by() -> None:
        order.append("other")
        beside.set()

    host.on(other, pass_by)
    assert beside.wait(60)
    gate.set()
    reader.synchronize()
    assert order == ["other", "reader"], order
    assert seen(tensor) == [SIZE] * 8
    dist.destroy_process_group()
    return order


@program
def the_current_device_may_be_another() -> Any:
    """`wait` holds back the stream of the communicator's device, whichever device is current."""
    join()
    host = Host()
    gate, passed = threading.Event(), threading.Event()
    tensor = made([1] * 8, torch.uint8)
    own, producer = torch.cuda.default_stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        host.on(producer, lambda: gate.wait(60) and None)
        work = dist.all_reduce(tensor, async_op=True)
    with torch.cuda.device(0):
        work.wait()
    host.on(own, passed.set)
    early = passed.wait(0.5)
    gate.set()
    assert passed.wait(60)
    assert not early
    torch.cuda.synchronize()
    assert seen(tensor) == [SIZE] * 8
    dist.destroy_process_group()
    return early


@program
def tensors_may_be_dropped_early() -> Any:
    join()
    host, gate = Host(), threading.Event()
    outs = []
    producer = torch.cuda.Stream()
    with torch.cuda.stream(producer):
        givers = [made([float(RANK + round_)] * 1000) for round_ in range(4)]
        host.on(producer, lambda: gate.wait(60) and None)
        while givers:
            gone = givers.pop(0)
            out = empty(1000 * SIZE)
            dist.all_gather_into_tensor(out, gone, async_op=True)
            del gone
            gc.collect()
            outs.append(out)
            # Would get the dropped tensor's memory, if that were free already.
            host.fill(producer, empty(1000), 0xFF)
    gate.set()
    torch.cuda.synchronize()
    for round_, out in enumerate(outs):
        expected = [float(rank + round_) for rank in range(SIZE) for _ in range(1000)]
        assert seen(out) == expected, round_
    dist.destroy_process_group()
    return None


@program
def futures() -> Any:
    join()
    tensor = made([RANK + 1.0])
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: [done.value()[0].cpu() * 2])
    doubled.wait()
    assert doubled.value()[0].tolist() == [2.0 * sum(range(1, SIZE + 1))]
    assert seen(future.wait()[0]) == [float(sum(range(1, SIZE + 1)))]
    dist.destroy_process_group()
    return None


@program
def memory_pools() -> Any:
    """Tensors in memory of NCCL's own."""
    join()
    if OURS:
        import torchcomms

        allocator = torchcomms.get_mem_allocator("nccl")
    else:
        allocator = dist.distributed_c10d._get_default_group()._get_backend(device()).mem_allocator
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(1000)
    tensor.copy_(torch.full((1000,), RANK + 1.0))
    backend = dist.distributed_c10d._get_default_group()._get_backend(device())
    backend.register_mem_pool(pool)
    dist.all_reduce(tensor)
    assert tensor.cpu().eq(sum(range(1, SIZE + 1))).all()
    checked = OURS and os.environ.get("SIMGPU") == "1"
    if checked:
        assert registered(tensor.data_ptr(), tensor.nbytes) == 1
        backend.register_mem_pool(pool)  # what is registered already stays so
    backend.deregister_mem_pool(pool)
    if checked:
        assert registered() == 0
        backend.register_mem_pool(pool)
        assert registered() == 1
    del backend, tensor, pool
    dist.destroy_process_group()
    if checked:
        assert registered() == 0
    return None


@program
def memory_of_a_backend() -> Any:
    if not OURS:
        return None  # torch's own backend has none on this device
    import torchcomms

    join()
    backend = dist.group.WORLD._get_backend(device())
    assert backend.supports_tensor_alloc(device())
    assert backend.mem_allocator is torchcomms.get_mem_allocator("nccl")
    tensor = backend.allocate_tensor(4, dtype=torch.float32, device=device())
    tensor.copy_(torch.full((4,), RANK + 1.0))
    dist.all_reduce(tensor)
    assert seen(tensor) == [sum(range(1, SIZE + 1))] * 4
    del tensor
    dist.destroy_process_group()
    return None


@program
def a_group_shrinks() -> Any:
    """The last rank leaves, also while an operation is on its way, which torch's own refuses."""
    staying = SIZE - 1
    expected = [[float(sum(range(1, SIZE)))], RANK, staying] if staying > RANK else None
    if not OURS:
        return expected
    join()
    group = dist.new_group(device_id=device())
    dist.all_reduce(made([1.0]), group=group)
    found = None
    if RANK < SIZE - 1:
        smaller = dist.shrink_group([SIZE - 1], group)
        tensor = made([RANK + 1.0])
        dist.all_reduce(tensor, group=smaller)
        found = [seen(tensor), smaller.rank(), smaller.size()]
        dist.destroy_process_group(smaller)
    dist.barrier()
    dist.destroy_process_group()
    return found


def registered(address: int = 0, size: int = 0) -> int:
    """How many registrations with NCCL cover memory, or how many there are: the simulator knows."""
    count = ctypes.CDLL("libnccl.so.2").simgpuNcclRegistered
    count.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    return int(count(address, size))


@program
def a_factor_on_the_device() -> Any:
    """PREMUL_SUM reads a factor on the device when it runs there, not when it is called."""
    join()
    host, gate = Host(), threading.Event()
    tensor, factor = made([1.0 + RANK, 4.0]), made([1.0])
    half = torch.tensor([0.5])
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        host.on(stream, lambda: gate.wait(60) and None)
        host.on(stream, lambda: ctypes.memmove(factor.data_ptr(), half.data_ptr(), 4) and None)
        work = dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), async_op=True)
    gate.set()
    work.wait()
    torch.cuda.synchronize()
    values = [seen(tensor)]
    assert seen(tensor)[1] == 2.0 * SIZE, values
    # Nobody keeps this factor but the operation.
    gate.clear()
    gone, tensor, out = made([0.25]), made([4.0] * SIZE), empty(1)
    with torch.cuda.stream(stream):
        host.on(stream, lambda: gate.wait(60) and None)
        op = dist._make_nccl_premul_sum(gone)
        work = dist.reduce_scatter_tensor(out, tensor, op, async_op=True)
        del gone, op
        gc.collect()
        host.fill(stream, empty(1), 0xFF)
    gate.set()
    work.wait()
    torch.cuda.synchronize()
    values.append(seen(out))
    assert seen(out) == [1.0 * SIZE]
    if OURS:
        # A factor of another dtype is converted on the device, one on the host is read at once.
        for given in (torch.tensor(0.5, dtype=torch.float64), made([0.5], torch.float64)):
            tensor = made([2.0], torch.float64)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(given))
            assert seen(tensor) == [1.0 * SIZE]
    dist.destroy_process_group()
    return values


# ---- profiling

# Names that torch's own backend takes from its functions.
PROFILED = {
    "allGatherSingleImpl": "all_gather_single",
    "reduceScatterSingleImpl": "reduce_scatter_single",
    "allToAllSingleImpl": "all_to_all_single",
}


def profiled_calls() -> None:
    tensor, whole, part = made([1.0] * 2 * SIZE), empty(2 * SIZE * SIZE), empty(2)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor, 1)
    dist.reduce(tensor, 1)
    dist.all_gather_into_tensor(whole, tensor)
    dist.reduce_scatter_tensor(part, tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    dist.barrier()
    if RANK == 0:
        dist.send(tensor, 1)
    elif RANK == 1:
        dist.recv(tensor, 0)


@program
def profiled() -> Any:
    """torch's profiler is told of the same operations, with the same arguments."""
    from torch.profiler import ProfilerActivity, profile

    join()
    profiled_calls()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        profiled_calls()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json") as file:
            events = json.load(file)["traceEvents"]
    fields = ["Seq", "Rank", "In msg nelems", "Out msg nelems", "dtype", "Group size"]
    fields += ["Process Group Name", "In split size", "Out split size"]
    found = []
    for event in events:
        facts = event.get("args", {})
        name = facts.get("Collective name", "wait")
        if event.get("name") != "record_param_comms" or name == "wait":
            continue
        call: dict[str, Any] = {"name": PROFILED.get(name, name), "dims": facts["Input Dims"][0]}
        call |= {field: facts.get(field) for field in fields}
        if name in ("send", "recv"):
            del call["Seq"]  # torch's own does not count them
        found.append(call)
    assert len(found) == (9 if RANK < 2 else 8), found
    if OURS:
        spans = [event["name"] for event in events if event.get("name", "").startswith("nccl:")]
        assert spans.count("nccl:all_reduce") == 2, spans
    dist.destroy_process_group()
    return found


# ---- graphs


@program
def graphs() -> Any:
    join()
    tensor, beside = made([1.0] * 4), made([2.0] * 4)
    gathered = empty(4 * SIZE)
    dist.all_reduce(made([0.0]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
        work = dist.all_reduce(beside, async_op=True)
        work.wait()
        # Nobody else holds this one; the graph does.
        dist.all_gather_into_tensor(gathered, torch.empty_like(tensor).copy_(tensor))
    del work
    gc.collect()
    assert seen(tensor) == [1.0] * 4
    for _ in range(3):
        graph.replay()
    # Operations outside go on beside the graph.
    again = made([1.0])
    dist.all_reduce(again)
    torch.cuda.synchronize()
    assert seen(tensor) == [float(SIZE**3)] * 4
    assert seen(beside) == [2.0 * SIZE**3] * 4
    assert seen(gathered) == [float(SIZE**3)] * 4 * SIZE
    assert seen(again) == [float(SIZE)]
    del graph
    gc.collect()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return seen(gathered)


# ---- training


def trained(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Any:
    """Three steps of a small model on this rank's part of the data: losses and weights."""
    from simops import SimOps
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_leaves

    class Ops(SimOps):
        """Leaves a sharded tensor to its own class, which comes back with the parts, and fakes."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, FakeTensor):
                    return function(*args, **(kwargs or {}))
                if is_traceable_wrapper_subclass(leaf):
                    return NotImplemented
            return super().__torch_dispatch__(function, types, args, kwargs)

    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
    batch = torch.randn(3, 4 * SIZE, 8)[:, 4 * RANK : 4 * RANK + 4]
    with Ops():
        model = wrap(torch.nn.Sequential(*layers).to(device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in batch:
            loss = model(step.to(device())).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        weights = [
            parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            for parameter in model.parameters()
        ]
        found = [seen(weight.detach().flatten()) for weight in weights]
    return [losses, found]


@program
def data_parallel() -> Any:
    join()
    found = trained(lambda model: torch.nn.parallel.DistributedDataParallel(model))
    dist.destroy_process_group()
    return found


@program
def fully_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    join()

    def shard(model: torch.nn.Module) -> torch.nn.Module:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        return fully_shard(model)

    # On the simulator torch's own backend is not always right here, so it is no reference; the
    # same training without shards is.
    if OURS:
        losses, weights = trained(shard)
        torch.cuda.synchronize()
        wholly = trained(lambda model: torch.nn.parallel.DistributedDataParallel(model))
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wholly[0]))
        for ours, theirs in zip(weights, wholly[1], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
    dist.destroy_process_group()
    return None


def main() -> None:
    names = sys.argv[1:] or list(PROGRAMS)
    for name in names:
        began = time.monotonic()
        result = PROGRAMS[name]()
        print(f"TOOK {name} {time.monotonic() - began:.1f} s", flush=True)
        print(f"RESULT {name} {json.dumps(result)}", flush=True)
    # The server goes last.
    meeting().set(f"done {RANK}", "")
    if RANK == 0:
        meeting().wait([f"done {rank}" for rank in range(SIZE)])


if __name__ == "__main__":
    main()
