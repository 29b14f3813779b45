"""The communicator face: every operation against a plain reference, over both transports."""

from __future__ import annotations

import json

import pytest
import torch
from operations import LAYOUTS, Case, Operations
from ranks import Rank
from reference import DTYPES, OPS, assert_reduced, assert_same, data, supported

import torchcomms

# One element, an uneven few, more than a page, more than one piece of any pipeline.
SHAPES = ((1, 1), (3, 5), (7, 331), (64, 4099))


def every_operation(me: Rank, expected_transport: str) -> None:
    comm = me.comm()
    for asynchronous in (False, True):
        for shape in SHAPES:
            case = Case(shape=shape, asynchronous=asynchronous)
            Operations(comm, case).movements()
            Operations(comm, case).reductions()
    info = json.loads(comm.info())
    assert info["engine"] == "host"
    assert info["transport"] == ("none" if me.size == 1 else expected_transport), info
    assert info["operations"]["all_reduce"]["count"] == 2 * len(SHAPES)
    comm.finalize()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_operation_sync_and_async(job_over, transport, size):
    job_over(every_operation, size, transport)


def every_dtype_and_op(me: Rank) -> None:
    comm = me.comm()
    for number, dtype in enumerate(DTYPES):
        layout = LAYOUTS[number % len(LAYOUTS)]
        case = Case(dtype=dtype, layout=layout, asynchronous=number % 2 == 0, seed=number)
        Operations(comm, case).movements()
        for op in OPS:
            case = Case(dtype=dtype, layout=layout, op=op, seed=number)
            if supported(op, dtype):
                Operations(comm, case).reductions()
            else:
                with pytest.raises(NotImplementedError, match=r"not supported"):
                    Operations(comm, case).all_reduce()
    # after all the refusals it still works
    Operations(comm, Case()).all_reduce()
    comm.finalize()


@pytest.mark.parametrize("size", [2, 3])
def test_every_dtype_and_op(job, size):
    job(every_dtype_and_op, size)


def every_layout(me: Rank) -> None:
    comm = me.comm()
    for layout in LAYOUTS:
        for asynchronous in (False, True):
            case = Case(layout=layout, asynchronous=asynchronous)
            Operations(comm, case).movements()
            Operations(comm, case).reductions()
    # a column of a larger tensor: its neighbour is left alone
    base = torch.arange(4).reshape(2, 2) + 10 * me.rank
    neighbour = base[:, 1].clone()
    comm.broadcast(base[:, 0], 1)
    assert base[:, 0].tolist() == [10, 12]
    comm.all_reduce(base[:, 0], torchcomms.ReduceOp.SUM)
    assert base[:, 0].tolist() == [10 * me.size, 12 * me.size]
    comm.reduce(base[:, 0], 0, torchcomms.ReduceOp.SUM)
    parts = [torch.tensor([[r, 0], [r, 0]])[:, 0] for r in range(me.size)]
    comm.scatter(base[:, 0], parts if me.rank == 0 else [], 0)
    assert base[:, 0].tolist() == [me.rank, me.rank]
    assert torch.equal(base[:, 1], neighbour)
    with pytest.raises(ValueError, match="share memory"):
        comm.all_reduce(torch.ones(1).expand(4), torchcomms.ReduceOp.SUM)
    comm.finalize()


def test_layouts(job_over):
    job_over(every_layout, 2)


def without_elements(me: Rank) -> None:
    comm = me.comm()
    for asynchronous in (False, True):
        for shape in ((0, 3), (4, 0)):
            case = Case(shape=shape, asynchronous=asynchronous)
            Operations(comm, case).movements()
            Operations(comm, case).reductions()
        empty = torch.empty(1, 0, 2)
        comm.all_reduce(empty, torchcomms.ReduceOp.SUM)
        comm.broadcast(empty, me.size - 1)
    Operations(comm, Case()).all_reduce()
    comm.finalize()


@pytest.mark.parametrize("size", [1, 4])
def test_zero_elements(job_over, size):
    job_over(without_elements, size)


def corners(me: Rank) -> None:
    comm = me.comm()
    op = torchcomms.ReduceOp
    # AVG truncates toward zero: -7 over 3 ranks is -2
    values = [-3, -3, -1]
    average = torch.tensor([values[me.rank]], dtype=torch.int32)
    comm.all_reduce(average, op.AVG)
    assert average.item() == -2
    for dtype in (torch.float32, torch.bfloat16):
        average = torch.tensor([float(values[me.rank])], dtype=dtype)
        comm.all_reduce(average, op.AVG)
        assert_reduced(average, [torch.tensor([float(v)], dtype=dtype) for v in values], "AVG")
    # wrap-around at sizes around a vector register and a page
    for count in (1, 15, 16, 17, 4097):
        for dtype, triple in ((torch.int8, (120, -120, 1)), (torch.uint8, (200, 0, 255))):
            inputs = [torch.full((count,), v, dtype=dtype) for v in triple]
            total = inputs[me.rank].clone()
            comm.all_reduce(total, op.SUM)
            assert_same(total, inputs[0] + inputs[1] + inputs[2], f"{dtype} {count}")
    # the same bits on all ranks and in every run
    torch.manual_seed(me.rank)
    first = data(5, me.rank, (10007,), torch.float32)
    again = first.clone()
    comm.all_reduce(first, op.SUM)
    comm.all_reduce(again, op.SUM, async_op=True).wait()
    assert_same(again, first, "sync against async")
    everywhere = [torch.empty_like(first) for _ in range(me.size)]
    comm.all_gather(everywhere, first)
    for other in everywhere:
        assert_same(other, first, "rank against rank")
    # NaN wins in MIN and MAX
    for name in ("MIN", "MAX"):
        holed = torch.tensor([float("nan") if me.rank == 1 else 1.0, 2.0 + me.rank])
        comm.all_reduce(holed, getattr(op, name))
        assert holed[0].isnan()
        assert holed[1].item() == (2.0 if name == "MIN" else 4.0)
    comm.finalize()


def test_reduction_corners(job_over):
    job_over(corners, 3)


def bitwise_and_premul(me: Rank) -> None:
    comm = me.comm()
    op = torchcomms.ReduceOp
    for name, expected in (("BAND", 2), ("BOR", 7), ("BXOR", 5)):
        tensor = torch.tensor([6 if me.rank == 0 else 3])
        comm.all_reduce(tensor, getattr(op, name))
        assert tensor.item() == expected
        with pytest.raises(NotImplementedError, match=name):
            comm.all_reduce(torch.ones(2), getattr(op, name))
    tensor = torch.ones(3) * (me.rank + 1)
    comm.all_reduce(tensor, op.PREMUL_SUM(2.0))
    assert tensor.tolist() == [6.0, 6.0, 6.0]
    comm.all_reduce(tensor, op.PREMUL_SUM(torch.tensor(0.5)))
    assert tensor.tolist() == [6.0, 6.0, 6.0]
    comm.finalize()


def test_bitwise_and_premul(job):
    job(bitwise_and_premul, 2)


def opposite_orders(me: Rank) -> None:
    """Two communicators, issued in opposite order on the two ranks: neither waits for the other."""
    first, second = me.comm("first"), me.comm("second")
    for count in (8, 300_000):
        a, b = torch.ones(count), torch.full((count,), 2.0)
        order = [(first, a), (second, b)]
        if me.rank == 1:
            order.reverse()
        works = [c.all_reduce(t, torchcomms.ReduceOp.SUM, async_op=True) for c, t in order]
        for work in works:
            work.wait()
        assert a.unique().tolist() == [2.0]
        assert b.unique().tolist() == [4.0]
    first.finalize()
    second.finalize()


def test_two_communicators_in_opposite_order(job_over):
    job_over(opposite_orders, 2)


def async_in_any_wait_order(me: Rank) -> None:
    comm = me.comm()
    tensors = [torch.full((1000,), float(i + me.rank)) for i in range(50)]
    works = [comm.all_reduce(t, torchcomms.ReduceOp.SUM, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    for number, tensor in enumerate(tensors):
        assert tensor.unique().tolist() == [2.0 * number + 1]
    # nobody waits: finalize does
    left = torch.ones(10)
    comm.all_reduce(left, torchcomms.ReduceOp.SUM, async_op=True)
    comm.finalize()
    assert left.unique().tolist() == [2.0]


def test_async_in_any_wait_order(job_over):
    job_over(async_in_any_wait_order, 2)


def split(me: Rank) -> None:
    comm = me.comm()
    # two disjoint groups at once; the list is the rank order
    low = comm.split([1, 0], "low")
    high = comm.split([2, 3], "high")
    mine = low if me.rank < 2 else high
    assert (low is None) == (me.rank >= 2)
    assert (high is None) == (me.rank < 2)
    assert mine.get_size() == 2
    assert mine.get_rank() == (1 - me.rank if me.rank < 2 else me.rank - 2)
    tensor = torch.tensor([me.rank])
    mine.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    assert tensor.item() == (1 if me.rank < 2 else 5)
    alone = mine.split([mine.get_rank()], f"alone{me.rank}") if mine.get_rank() == 0 else None
    if mine.get_rank() == 1:
        assert mine.split([0], f"alone{me.rank}") is None
    if alone is not None:
        alone.barrier()
        alone.finalize()
    tensor = torch.tensor([me.rank])
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    assert tensor.item() == 6
    mine.finalize()
    comm.finalize()


def test_split(job_over):
    job_over(split, 4)


def copies_and_attributes(me: Rank) -> None:
    import copy

    comm = me.comm("named", timeout=11.0)
    assert (comm.get_rank(), comm.get_size(), comm.get_name()) == (me.rank, me.size, "named")
    assert comm.get_device() == torch.device("cpu")
    assert comm.get_timeout().total_seconds() == 11.0
    assert copy.copy(comm) is comm
    assert copy.deepcopy(comm) is comm
    op = torchcomms.ReduceOp.PREMUL_SUM(2.0)
    assert copy.deepcopy(op).type == op.type
    comm.note = "users may"
    assert comm.note == "users may"
    assert comm.state() == "ready"
    assert "named" in repr(comm)
    comm.finalize()
    comm.finalize()
    assert comm.state() == "finalized"
    with pytest.raises(RuntimeError, match="finalized"):
        comm.barrier()


def test_attributes_copies_and_finalize(job):
    job(copies_and_attributes, 1)


def from_inference_mode(me: Rank) -> None:
    comm = me.comm()
    with torch.inference_mode():
        for asynchronous in (False, True):
            case = Case(asynchronous=asynchronous, layout="strided")
            Operations(comm, case).movements()
            Operations(comm, case).reductions()
    comm.finalize()


def test_inference_mode(job):
    job(from_inference_mode, 2)


def turns(me: Rank, transport: str) -> None:
    """One collective at a time is under way: what was issued behind it has not begun."""
    comm = me.comm()
    status = torchcomms.WorkStatus
    rows = torch.empty(me.size)
    if me.rank == 0:
        # it comes to the first gather once the other has looked
        comm.recv(torch.empty(1), 1)
    first = comm.all_gather_single(rows, torch.tensor([me.rank + 1.0]), async_op=True)
    second = comm.barrier(async_op=True)
    if me.rank == 1:
        assert first.status == status.INPROGRESS
        assert second.status == status.NOT_STARTED
        assert not second.is_completed()
        comm.send(torch.ones(1), 0)
    first.wait()
    second.wait()
    assert first.status == second.status == status.COMPLETED
    assert rows.tolist() == [1.0, 2.0]
    comm.finalize()


def test_what_waits_for_its_turn_has_not_started(job_over, transport):
    job_over(turns, 2, transport)
