"""Bad input: a clear error before anything moves, and the communicator goes on working."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from ranks import Rank

import torchcomms

SUM = torchcomms.ReduceOp.SUM


def works(comm: torchcomms.TorchComm) -> None:
    tensor = torch.tensor([comm.get_rank() + 1])
    comm.all_reduce(tensor, SUM)
    assert tensor.item() == sum(range(1, comm.get_size() + 1))


def bad_arguments(me: Rank) -> None:
    comm = me.comm()
    two = [torch.ones(2) for _ in range(2)]
    one, wide = torch.ones(2), torch.ones(4)
    bad = [
        ("root", lambda a: comm.broadcast(one, 2, async_op=a)),
        ("root", lambda a: comm.broadcast(one, -1, async_op=a)),
        ("root", lambda a: comm.reduce(one, 7, SUM, async_op=a)),
        ("root", lambda a: comm.scatter(one, two, 5, async_op=a)),
        ("root", lambda a: comm.gather(two, one, 5, async_op=a)),
        ("peer|rank|dst", lambda a: comm.send(one, 9, async_op=a)),
        ("peer|rank|src|source", lambda a: comm.recv(one, -5, async_op=a)),
        ("length", lambda a: comm.all_gather(two[:1], one, async_op=a)),
        ("length", lambda a: comm.all_to_all(two, two[:1], async_op=a)),
        ("length", lambda a: comm.reduce_scatter(one, [*two, one], SUM, async_op=a)),
        ("dtype", lambda a: comm.all_gather([two[0], two[1].int()], one, async_op=a)),
        ("dtype", lambda a: comm.all_gather_single(wide.double(), one, async_op=a)),
        ("elements", lambda a: comm.all_gather_single(one, one, async_op=a)),
        ("elements", lambda a: comm.reduce_scatter_single(one, one, SUM, async_op=a)),
        ("elements", lambda a: comm.reduce_scatter(one, [torch.ones(3)] * 2, SUM, async_op=a)),
        ("device", lambda a: comm.all_reduce(torch.ones(2, device="meta"), SUM, async_op=a)),
        ("dense", lambda a: comm.all_reduce(torch.eye(2).to_sparse(), SUM, async_op=a)),
        ("split", lambda a: comm.all_to_all_single(torch.ones(5), torch.ones(5), async_op=a)),
    ]
    bad += [
        (
            "split",
            lambda a, s=splits: comm.all_to_all_v_single(
                torch.ones(4), torch.ones(4), s, s, async_op=a
            ),
        )
        for splits in ([-1, 5], [1, 2], [4, 1], [1, 1, 2], [2**62, 2**62])
    ]
    for words, call in bad:
        for asynchronous in (False, True):
            with pytest.raises(ValueError, match=f"(?i){words}") as caught:
                call(asynchronous)
            assert "comm" in str(caught.value), caught.value
            assert f"rank {me.rank}" in str(caught.value), caught.value
        works(comm)
    for splits in ([0, 4], [4, 0]):
        # fits rank 0's view; both agree on what they exchange
        out = [splits[me.rank]] * 2
        comm.all_to_all_v_single(torch.ones(sum(out)), torch.ones(4), out, splits)
    with pytest.raises(TypeError):
        comm.all_reduce([torch.ones(1)], SUM)
    with pytest.raises(TypeError):
        comm.all_reduce(torch.ones(1), "SUM")
    with pytest.raises(TypeError):
        comm.broadcast(torch.ones(1), 0.5)
    works(comm)
    with pytest.raises(ValueError, match=r"(?i)rank"):
        comm.split([0, 2], "out of range")
    with pytest.raises(ValueError, match=r"(?i)rank|twice|duplicate"):
        comm.split([0, 0], "twice")
    works(comm)
    comm.finalize()


def test_bad_arguments_leave_it_usable(job_over):
    job_over(bad_arguments, 2)


def clash(comm: torchcomms.TorchComm, kind: str) -> None:
    """A call that does not fit the other rank's."""
    first = comm.get_rank() == 0
    if kind == "shape":
        comm.all_reduce(torch.ones(100 if first else 200, 2560), SUM)
    elif kind == "dtype":
        comm.all_reduce(torch.ones(8, dtype=torch.float32 if first else torch.int32), SUM)
    elif kind == "op":
        comm.all_reduce(torch.ones(8), SUM if first else torchcomms.ReduceOp.MAX)
    elif kind == "root":
        comm.broadcast(torch.ones(8), comm.get_rank())
    elif first:
        comm.all_reduce(torch.ones(8), SUM)
    else:
        comm.broadcast(torch.ones(8), 1)
    # A root that had finished before the other side looked hears of it on its next operation.
    comm.barrier()


def different_calls(me: Rank, kind: str) -> str:
    comm = me.comm(timeout=8.0)
    works(comm)
    with pytest.raises(RuntimeError) as caught:
        clash(comm, kind)
    text = str(caught.value)
    assert "mismatch" in text, text
    # failed for good, with the same cause; ending it is still legal
    with pytest.raises(RuntimeError, match="mismatch"):
        comm.barrier()
    assert comm.state() == "failed"
    assert "mismatch" in comm.error()
    comm.abort()
    comm.finalize()
    after = me.comm("after")
    works(after)
    after.finalize()
    return text


@pytest.mark.parametrize("kind", ["shape", "dtype", "op", "root", "operation"])
def test_mismatch_raises_on_both_sides(job_over, kind):
    texts = job_over(different_calls, 2, kind)
    for text in texts:
        assert "got" in text
        assert "expected" in text


def bad_makers(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"unknown backend 'mooncake'.*gloo"):
        torchcomms.new_comm("mooncake", "cpu")
    with pytest.raises(TypeError, match="backend must be a str"):
        torchcomms.new_comm(None, "cpu")
    with pytest.raises(ValueError, match=r"'gloo' serves cpu tensors, got device 'cuda'"):
        torchcomms.new_comm("gloo", torch.device("cuda:0"))
    with pytest.raises(ValueError, match=r"'nccl' serves cuda tensors, got device 'cpu'"):
        torchcomms.new_comm("nccl", "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(NotImplementedError, match=r"no NVIDIA driver.*gloo serves CPU tensors"):
            torchcomms.new_comm("nccl", torch.device("cuda"), store=me.store())
    with pytest.raises(TypeError, match="timeout must be a timedelta"):
        torchcomms.new_comm("gloo", "cpu", timeout=3)
    with pytest.raises(ValueError, match="timeout must be positive, got 0 s"):
        torchcomms.new_comm("gloo", "cpu", timeout=timedelta(0))
    with pytest.raises(TypeError, match=r"store must be a torch\.distributed\.Store, got dict"):
        torchcomms.new_comm("gloo", "cpu", store={})
    with pytest.raises(TypeError, match="hints must map str to str, got 'a': 1"):
        torchcomms.new_comm("gloo", "cpu", store=me.store(), hints={"a": 1})


def test_bad_arguments_of_new_comm(job):
    job(bad_makers, 1)


def bad_batches_and_windows(me: Rank) -> None:
    comm = me.comm()
    one = torch.ones(1)
    window = comm.new_window(torch.ones(4))
    outside = [
        lambda: window.put(one, 1, 0),
        lambda: window.signal(1),
        lambda: window.wait_signal(-1),
        lambda: window.map_remote_tensor(7),
        lambda: window.get_attr(-1),
        lambda: comm.batch_op_create().send(one, 3),
    ]
    for call in outside:
        with pytest.raises(ValueError, match=r"not a rank.*expected 0 to 0.*comm, rank 0"):
            call()
    batch = comm.batch_op_create()
    with pytest.raises(TypeError, match="options must be BatchP2POptions, got int"):
        batch.issue(options=3)
    with pytest.raises(TypeError, match="operation must be a P2POp, got str"):
        batch.add("send")
    with pytest.raises(TypeError, match="peer must be an int, got str"):
        torchcomms.P2POp("send", one, "0")
    with pytest.raises(TypeError, match=r"tensor must be a torch\.Tensor, got list"):
        torchcomms.P2POp("send", [1.0], 0)
    with pytest.raises(ValueError, match="one element, got 2"):
        torchcomms.ReduceOp.PREMUL_SUM(torch.ones(2))
    with pytest.raises(TypeError, match="hints must map str to str, got int"):
        torchcomms.new_comm("gloo", "cpu", store=me.store("other"), hints=3)
    works(comm)
    window.tensor_deregister()
    comm.finalize()


def test_bad_arguments_of_batches_and_windows(job):
    job(bad_batches_and_windows, 1)
