"""Hints and time-outs reach what they are given to: parts, windows, handles, later members."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms
from torchcomms import ReduceOp, TorchCommWinAccessType

# More than fits into 64 bits of nanoseconds, and of microseconds.
AGES = timedelta(days=365_000)
ENDLESS = timedelta.max
# What is longer counts as this.
LONGEST = timedelta(days=36_500)
UNIFIED = TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED


def sockets() -> int:
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def parts(me: Rank) -> None:
    """The engine reads the hints of a part when it is made: `eager` dials all its ranks."""
    comm = me.comm()
    both = list(range(me.size))
    before = sockets()
    comm.split(both, "lazy", hints={"eager": "0"}).finalize()
    assert sockets() == before
    # as others who have none of it: a wrong value is an error on all, and nothing has happened
    for ranks in (both, [1]):
        with pytest.raises(ValueError, match=r'eager="maybe".*true or false'):
            comm.split(ranks, "wrong", hints={"eager": "maybe"})
    assert comm.state() == "ready"
    assert sockets() == before
    comm.set_hints({"eager": "true"})
    me.meet("nobody has dialled")
    part = comm.split(both, "eager", timeout=timedelta(seconds=7))
    assert sockets() > before
    assert part.get_hints() == {"eager": "true"}
    assert part.get_timeout() == timedelta(seconds=7)
    assert part.get_options().timeout == timedelta(seconds=7)
    # those of the call come before those of the communicator, and are the part's own
    own = part.split(both, "own", hints={"eager": "false", "colour": "red"})
    assert own.get_hints() == {"eager": "false", "colour": "red"}
    assert part.get_hints() == {"eager": "true"}
    assert own.get_timeout() == timedelta(seconds=7)
    own.finalize()
    part.finalize()
    comm.finalize()


def test_the_hints_of_a_split_reach_the_engine(job):
    job(parts, 2, env={"FERROCOMM_HOST_TRANSPORT": "tcp"})


def making(me: Rank) -> None:
    with pytest.raises(ValueError, match=r'eager="maybe".*true or false'):
        me.comm(hints={"eager": "maybe"})
    me.comm("again", hints={"eager": "1"}).finalize()


def test_a_hint_with_a_wrong_value_is_refused_before_ranks_meet(job):
    job(making, 1)


def wishes_for_windows(me: Rank) -> None:
    """A wrong wish for windows is refused where it is given, not with the first window."""
    wrong = {"share_memory": "nonsense"}
    refused = r"share_memory has no such value; got nonsense; expected true, 1, false or 0"
    for make in (
        lambda: me.comm(hints=wrong),
        lambda: torchcomms.new_comm("gloo", "cpu", enable_reconfigure=True, hints=wrong),
    ):
        with pytest.raises(ValueError, match=refused):
            make()
    # nobody has met anybody yet
    comm = me.comm("right", hints={"share_memory": "1"})
    changing = torchcomms.new_comm("gloo", "cpu", name="changing", enable_reconfigure=True)
    handles = [changing.get_init_handle()]
    for call in (
        lambda: comm.split([0, 1], "part", hints=wrong),
        lambda: comm.set_hints({"eager": "0"} | wrong),
        lambda: comm.new_window(torch.zeros(4), hints=wrong),
        lambda: changing.reconfigure(1, handles, hints=wrong),
    ):
        with pytest.raises(ValueError, match=refused):
            call()
    assert comm.get_hints() == {"share_memory": "1"}
    assert changing.state() == "unconfigured"
    # and the ranks are where they were
    comm.split([0, 1], "part").finalize()
    comm.finalize()


def test_a_wrong_wish_for_windows_is_refused_where_it_is_given(job):
    job(wishes_for_windows, 2)


def windows(me: Rank) -> None:
    comm = me.comm(hints={"share_memory": "true"})
    peer = 1 - me.rank
    window = comm.new_window(torch.zeros(4))
    assert window.get_attr(peer).access_type == UNIFIED
    window.tensor_deregister(hints={}, timeout=timedelta(seconds=9))
    # a part has it from the communicator, and the call decides
    part = comm.split([0, 1], "part")
    window = part.new_window(torch.zeros(4))
    assert window.get_attr(peer).access_type == UNIFIED
    window.tensor_deregister()
    window = part.new_window(torch.zeros(4), hints={"share_memory": "false"})
    assert window.get_attr(peer).access_type != UNIFIED
    window.tensor_deregister()
    without = comm.split([0, 1], "without", hints={"share_memory": "0"})
    window = without.new_window(torch.zeros(4))
    assert window.get_attr(peer).access_type != UNIFIED
    window.tensor_deregister()
    for each in (without, part, comm):
        each.finalize()


def test_windows_follow_the_hints_of_their_communicator(job):
    job(windows, 2, env={"FERROCOMM_HOST_TRANSPORT": "shm"})


def handles(me: Rank) -> None:
    comm = me.comm()
    output = torch.empty(me.size)
    handle = comm.all_gather_p_init(output, timeout=timedelta(milliseconds=60))
    comm.all_gather_p_exec(handle, torch.tensor([float(me.rank)]), timeout=timedelta(seconds=20))
    assert output.tolist() == [0.0, 1.0]
    if me.rank == 0:
        with pytest.raises(torch.distributed.DistBackendError, match=r"time-out.*0\.060 s"):
            comm.all_gather_p_exec(handle, torch.ones(1))
    me.meet("late")
    comm.abort()


def test_a_persistent_gather_has_the_time_out_of_its_handle(job):
    job(handles, 2)


def limits(me: Rank) -> None:
    """No time at all is an error; more than the engine can count is as long as it can."""
    comm = me.comm()
    tensor = torch.ones(2)
    window = comm.new_window(tensor)
    calls = [
        lambda t: comm.all_reduce(tensor, ReduceOp.SUM, timeout=t),
        lambda t: comm.recv(tensor, 0, timeout=t),
        lambda t: comm.split([0], "part", timeout=t),
        lambda t: comm.new_window(tensor, timeout=t),
        lambda t: comm.all_gather_p_init(tensor, timeout=t),
        lambda t: window.signal(0, timeout=t),
        lambda t: window.tensor_deregister(timeout=t),
        lambda t: comm.batch_op_create().issue(timeout=t),
        lambda t: comm.barrier(async_op=True).wait(t),
    ]
    for call in calls:
        for short in (timedelta(0), timedelta(microseconds=300), timedelta(seconds=-1)):
            with pytest.raises(ValueError, match=r"too short.*at least 1 ms"):
                call(short)
    for wrong in (timedelta(0), timedelta(seconds=-1), timedelta.min):
        with pytest.raises(ValueError, match=r"must be positive, got (0|-)"):
            me.comm("never", hints={}, store=me.store(), timeout=wrong.total_seconds())
        with pytest.raises(ValueError, match=r"not positive.*at least 1 ms"):
            comm.set_timeout(wrong)
    assert comm.get_timeout() == timedelta(seconds=20)
    for long in (AGES, ENDLESS):
        comm.barrier(timeout=long)
        comm.barrier(async_op=True).wait(timeout=long)
        comm.split([0], "long", timeout=long).finalize()
        comm.set_timeout(long)
        assert comm.get_timeout() == LONGEST
        comm.all_reduce(tensor, ReduceOp.SUM)
    with pytest.raises(TypeError):
        comm.barrier(timeout=3)
    window.tensor_deregister(timeout=ENDLESS)
    comm.finalize()


def test_time_outs_that_are_none_and_those_without_end(job):
    job(limits, 1)


def without_end(me: Rank) -> None:
    """Ranks that wait for one another without a limit do wait."""
    store = me.store("endless")
    comm = torchcomms.new_comm("gloo", "cpu", name="endless", store=store, timeout=ENDLESS)
    assert comm.get_timeout() == LONGEST
    got = torch.zeros(1)
    tensor = torch.ones(1)
    for limit in (None, AGES, ENDLESS):
        if me.rank == 0:
            comm.recv(got, 1, timeout=limit)
            work = comm.recv(got, 1, async_op=True, timeout=limit)
            comm.send(got, 1)
            work.wait(limit)
        else:
            comm.send(tensor, 0, timeout=limit)
            comm.recv(got, 0)
            comm.send(tensor, 0)
    part = comm.split([1, 0], "part", timeout=ENDLESS)
    part.barrier()
    part.finalize()
    comm.finalize()


def test_ranks_wait_for_one_another_without_a_limit(job):
    job(without_end, 2)


def through_torch(me: Rank) -> None:
    """As far as torch hands them over: what it cannot count in microseconds becomes anything."""
    most = timedelta(days=106_000_000)
    made = {"init_method": f"file://{me.folder}/world", "rank": me.rank, "world_size": me.size}
    dist.config.use_torchcomms = True
    dist.init_process_group("gloo", timeout=most, **made)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(most)
    assert tensor.tolist() == [4.0, 4.0]
    part = dist.new_group([0, 1], timeout=ENDLESS)
    dist.all_reduce(tensor, group=part)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.get_comm().get_timeout() == LONGEST
    for wrong in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match=r"not positive.*at least 1 ms"):
            dist.set_timeout(wrong)
    with pytest.raises(ValueError, match=r"not positive.*torch can hand over no more"):
        dist.set_timeout(ENDLESS)
    dist.set_timeout(most)
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=-3)
    with pytest.raises(ValueError, match=r"not positive; got -3000 ms"):
        backend.allreduce([tensor], options)
    options.timeout = most
    backend.allreduce([tensor], options).wait()
    options.timeout = timedelta(0)  # none of its own
    backend.allreduce([tensor], options).wait()
    with pytest.raises(ValueError, match=r"not positive; got -2000 ms"):
        dist.monitored_barrier(timeout=timedelta(seconds=-2))
    dist.monitored_barrier(timeout=most)
    dist.destroy_process_group()


def test_time_outs_through_torch(job):
    job(through_torch, 2)


class Asked(torchcomms.TorchCommBackend):
    """Notes what its splits are asked for."""

    asked: ClassVar[list[dict[str, str]]] = []

    def split(self, ranks, name, options):
        self.asked.append(options.hints)
        return Asked()


def foreign(me: Rank) -> None:
    torchcomms.register_backend("asked", Asked)
    comm = torchcomms.new_comm(
        "asked", "cpu", store=me.store(), timeout=ENDLESS, hints={"a": "1", "b": "1"}
    )
    assert comm.get_timeout() == LONGEST
    comm.set_timeout(timedelta(seconds=5))
    comm.set_timeout(ENDLESS)
    assert comm.get_timeout() == LONGEST
    # its hints are its own
    comm.set_hints({"share_memory": "nonsense"})
    part = comm.split([0], "part", hints={"b": "2"})
    hints = {"a": "1", "b": "2", "share_memory": "nonsense"}
    assert Asked.asked == [hints]
    assert part.get_hints() == hints
    with pytest.raises(NotImplementedError, match=r"windows.*gloo or nccl"):
        part.new_window(torch.ones(1))
    part.finalize()
    comm.finalize()


def test_a_backend_in_python_is_told_the_hints_of_a_split(job):
    job(foreign, 1)


def changing(me: Rank) -> None:
    comm = torchcomms.new_comm(
        "gloo", "cpu", name="changing", enable_reconfigure=True, hints={"a": "1"}
    )
    options = comm.get_options()
    assert options.enable_reconfigure
    assert options.abort_process_on_timeout_or_error is None
    own = [comm.get_init_handle()]
    with pytest.raises(ValueError, match="eager"):
        comm.reconfigure(1, own, hints={"eager": "maybe", "b": "1"})
    assert comm.get_hints() == {"a": "1"}
    comm.reconfigure(1, own, hints={"b": "2"}).wait()
    assert comm.get_hints() == {"a": "1", "b": "2"}
    part = comm.split([0], "part")
    assert part.get_hints() == {"a": "1", "b": "2"}
    assert not part.get_options().enable_reconfigure
    part.finalize()
    comm.finalize()


def test_the_hints_of_a_reconfiguration_count_from_there_on(job):
    job(changing, 1)
