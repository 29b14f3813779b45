"""Hints and time-outs reach what they are given to: parts, windows, handles, later members."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import ClassVar

import pytest
import torch
from ranks import Rank

import torchcomms
from torchcomms import ReduceOp, TorchCommWinAccessType

# More than fits into 64 bits of nanoseconds.
AGES = timedelta(days=365_000)
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
    comm.barrier(timeout=AGES)
    comm.barrier(async_op=True).wait(timeout=AGES)
    comm.split([0], "long", timeout=AGES).finalize()
    comm.set_timeout(AGES)
    assert comm.get_timeout() > timedelta(days=1)
    comm.all_reduce(tensor, ReduceOp.SUM)
    with pytest.raises(TypeError):
        comm.barrier(timeout=3)
    window.tensor_deregister(timeout=AGES)
    comm.finalize()


def test_time_outs_that_are_none_and_those_without_end(job):
    job(limits, 1)


class Asked(torchcomms.TorchCommBackend):
    """Notes what its splits are asked for."""

    asked: ClassVar[list[dict[str, str]]] = []

    def split(self, ranks, name, options):
        self.asked.append(options.hints)
        return Asked()


def foreign(me: Rank) -> None:
    torchcomms.register_backend("asked", Asked)
    comm = torchcomms.new_comm("asked", "cpu", store=me.store(), hints={"a": "1", "b": "1"})
    part = comm.split([0], "part", hints={"b": "2"})
    assert Asked.asked == [{"a": "1", "b": "2"}]
    assert part.get_hints() == {"a": "1", "b": "2"}
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
