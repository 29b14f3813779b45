"""What c10d asks of a backend beyond collectives: splits, profiling, sparse sums, time-outs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank
from torch.autograd.profiler import profile

import torchcomms

CPU = torch.device("cpu")


def backend_of(group: Any) -> Any:
    return group._get_backend(CPU)


def splits_count_alike(me: Rank) -> None:
    """A rank outside a split is called more often than its members, and must not count more."""
    world = dist.group.WORLD
    for ranks in ([0, 1], [1, 2], [0, 1]):
        dist.split_group(split_ranks=[ranks])
    counts: list[Any] = [None] * me.size
    dist.all_gather_object(counts, backend_of(world)._get_sequence_number_for_group())
    assert len(set(counts)) == 1, counts
    pair = dist.split_group(split_ranks=[[0, 2], [1]])
    tensor = torch.tensor([me.rank])
    if me.rank == 0:
        dist.send(tensor, 2, group=pair)
    elif me.rank == 2:
        dist.recv(tensor, 0, group=pair)
        assert tensor.item() == 0


def profiled(me: Rank) -> None:
    many = [torch.zeros(2) for _ in range(me.size)]
    with profile(record_shapes=True) as seen:
        dist.all_reduce(torch.ones(3))
        dist.all_gather(many, torch.ones(2))
        dist.broadcast(torch.ones(5), 0, async_op=True).wait()
        if me.rank == 0:
            dist.send(torch.ones(4), 1)
        elif me.rank == 1:
            dist.recv(torch.ones(4), 0)
        dist.barrier()
    events = {e.name: e for e in seen.function_events if e.name.startswith("gloo:")}
    expected = {"gloo:all_reduce": [[3]], "gloo:all_gather": [[2]], "gloo:broadcast": [[5]]}
    expected["gloo:barrier"] = []
    if me.rank < 2:
        expected["gloo:send" if me.rank == 0 else "gloo:recv"] = [[4]]
    assert {name: event.input_shapes for name, event in events.items()} == expected
    assert all(event.is_async for event in events.values())


def sparse_sum(me: Rank) -> None:
    indices = torch.tensor([[0, me.rank, 4], [1, 2, 0]])
    values = torch.arange(6.0).reshape(3, 2) + me.rank
    size = (5, 3, 2)
    mine = torch.sparse_coo_tensor(indices, values, size)
    dense = mine.to_dense()
    dist.all_reduce(mine)
    dist.all_reduce(dense)
    assert torch.equal(mine.to_dense(), dense)
    empty = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 2), size)
    dist.all_reduce(empty, async_op=True).wait()
    assert empty.coalesce()._nnz() == 0
    with pytest.raises(NotImplementedError, match="can only be summed"):
        dist.all_reduce(mine, dist.ReduceOp.MAX)
    other = torch.sparse_coo_tensor(indices, values, (5 + me.rank, 3, 2))
    with pytest.raises(ValueError, match="different shapes"):
        dist.all_reduce(other)


def longer_for_a_while(me: Rank) -> None:
    """Receives that nobody answers say how long they waited."""
    pair = dist.new_group([0, 1])
    if me.rank != 0:
        return
    backend = backend_of(pair)
    backend.set_timeout(timedelta(seconds=0.1))
    backend._add_ephemeral_timeout(timedelta(seconds=0.2))
    backend._add_ephemeral_timeout(timedelta(seconds=0.1))
    first = dist.irecv(torch.ones(1), 1, group=pair)
    second = dist.irecv(torch.ones(1), 1, group=pair)
    for work in (first, second):
        with pytest.raises(RuntimeError, match=r"timeout of 0\.400 s"):
            work.wait()
    with pytest.raises(RuntimeError, match=r"timeout of 0\.100 s"):
        dist.recv(torch.ones(1), 1, group=pair)


def durations(me: Rank) -> None:
    backend = backend_of(dist.group.WORLD)
    untimed = dist.all_reduce(torch.ones(1), async_op=True)
    untimed.wait()
    with pytest.raises(RuntimeError, match="times are not taken"):
        untimed._get_duration()
    backend._enable_collectives_timing()
    start = time.perf_counter()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    spent = 1e3 * (time.perf_counter() - start)
    assert 0 < work._get_duration() <= spent


def words_of_timeouts(me: Rank) -> None:
    """Programs look for these words, torch's own tests among them."""
    if me.rank == 0:
        with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
            dist.group.WORLD.monitored_barrier(timedelta(0))
    pair = dist.new_group([0, 2])
    if me.rank == 0:
        options = dist.BarrierOptions()
        options.timeout = timedelta(seconds=0.2)
        with pytest.raises(RuntimeError, match=r" timeout of 0\.200 s"):
            pair.barrier(options).wait()


def surface(me: Rank) -> None:
    me.world()
    splits_count_alike(me)
    profiled(me)
    sparse_sum(me)
    longer_for_a_while(me)
    durations(me)
    words_of_timeouts(me)
    me.meet("end")
    assert torchcomms.engine_info()["groups"]
    dist.destroy_process_group()


def test_the_rest_of_c10d(job):
    job(surface, 3)
