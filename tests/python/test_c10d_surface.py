"""What c10d asks of a backend beyond collectives: splits, shrinking, profiling, hooks, memory."""

from __future__ import annotations

import os
import signal
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


def told_of_what_is_over(me: Rank) -> None:
    """A hook of its own group; waiting for what is pending also waits until it has been told."""
    group = dist.new_group()
    seen: list[Any] = []
    group._register_on_completion_hook(seen.append)
    with pytest.raises(RuntimeError, match="hook already"):
        group._register_on_completion_hook(seen.append)
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(3)]
    dist.broadcast(torch.ones(2), 0, group=group)
    group._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    kinds = sorted(str(info.op_type).rpartition(".")[2] for info in seen)
    assert kinds == ["ALLREDUCE", "ALLREDUCE", "ALLREDUCE", "BROADCAST"]
    assert len({info.seq for info in seen}) == 4
    for info in seen:
        assert info.time_started <= info.time_finished
        assert info.active_duration >= timedelta(0)
    # what fails is over, too, and the hook is not told of it
    if me.rank == 0:
        late = dist.irecv(torch.ones(1), 1, group=group)
        backend_of(group).set_timeout(timedelta(seconds=0.1))
        lost = dist.irecv(torch.ones(1), 1, group=group)
        with pytest.raises(RuntimeError, match="timeout"):
            lost.wait()
        me.meet("lost")
        late.wait()
    else:
        me.meet("lost")
        if me.rank == 1:
            dist.send(torch.ones(1), 0, group=group)
    group._wait_for_pending_works()
    assert len(seen) == (4 if me.rank > 1 else 5)


def memory_of_the_backend(me: Rank) -> None:
    backend = backend_of(dist.group.WORLD)
    assert backend.supports_tensor_alloc(CPU)
    assert backend.mem_allocator is torchcomms.get_mem_allocator("gloo")
    tensor = backend.allocate_tensor(5, dtype=torch.float64, device=CPU)
    assert (tensor.shape, tensor.dtype) == ((5,), torch.float64)
    tensor.fill_(me.rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [6.0] * 5


def refused_by_name(me: Rank) -> None:
    backend = backend_of(dist.group.WORLD)
    assert not backend._supports_time_estimate
    with pytest.raises(NotImplementedError, match="backend gloo has no startTimeEstimate"):
        backend._start_time_estimate()
    with pytest.raises(NotImplementedError, match="backend gloo has no endTimeEstimate"):
        backend._end_time_estimate()
    with pytest.raises(NotImplementedError, match="suspend"):
        backend.suspend()
    with pytest.raises(NotImplementedError, match="backend gloo has no merge"):
        dist.group.WORLD.merge_remote_group(me.store("merge"), 2 * me.size)


def surface(me: Rank) -> None:
    me.world()
    told_of_what_is_over(me)
    memory_of_the_backend(me)
    refused_by_name(me)
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


def shrunk(me: Rank) -> list[str]:
    """Groups, then the world; rank 2 leaves them and stays alive."""
    me.world()
    parts = [dist.new_group(), dist.split_group(split_ranks=[[2, 1, 0]])]
    if me.rank != 2:
        for part in parts:
            smaller = dist.shrink_group([dist.get_group_rank(part, 2)], part)
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=smaller)
            assert (tensor.item(), smaller.size()) == (2.0, 2)
    if me.rank == 2:
        with pytest.raises(RuntimeError, match="exclusion list"):
            dist.shrink_group([2])
        me.meet("end")
        return []
    backend = backend_of(dist.group.WORLD)
    with pytest.raises(ValueError, match="excluded twice"):
        backend.shrink([2, 2])
    with pytest.raises(ValueError, match="no such rank"):
        backend.shrink([3])
    with pytest.raises(ValueError, match="this rank is excluded"):
        backend.shrink([me.rank])
    pending = dist.irecv(torch.ones(1), 2)
    dist.shrink_group([2], shrink_flags=1)
    with pytest.raises(RuntimeError, match="aborted"):
        pending.wait()
    tensor = torch.tensor([me.rank + 1.0])
    dist.all_reduce(tensor)
    assert (tensor.item(), dist.get_world_size()) == (3.0, 2)
    (world,) = torchcomms.engine_info()["groups"]
    me.meet("end")
    dist.destroy_process_group()
    return [world["served_by"], world["communicator"]["operations"]["all_reduce"]]


def test_groups_shrink_without_those_who_leave(job_over):
    first, second, third = job_over(shrunk, 3)
    assert first == second == ["ferrocomm", {"count": 1, "bytes": 4}]
    assert third == []


def shrunk_after_a_death(me: Rank) -> float:
    me.world()
    if me.rank == 1:
        me.meet("joined")
        os.kill(os.getpid(), signal.SIGKILL)
    me.meet("joined")
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    dist.shrink_group([1], shrink_flags=1)
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    return tensor.item()


def test_a_group_shrinks_after_a_death(job_over):
    assert job_over(shrunk_after_a_death, 3, dies=[1]) == [3.0, None, 3.0]
