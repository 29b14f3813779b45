"""c10d's completion hook, by the one thing in Python that registers it: torch's own recorder.

torch leaves the recording to a backend that is called gloo, so the groups have names of the engine.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from ranks import Rank

import torchcomms
from torchcomms import _comms

if not hasattr(c10d.Backend, "supports_completion_hooks"):
    pytest.skip("torch before 2.15 has no completion hook", allow_module_level=True)

CPU = torch.device("cpu")
KIND = dist.ProcessGroup.BackendType.CUSTOM


def group_of(comm: torchcomms.TorchComm) -> dist.ProcessGroup:
    group = dist.ProcessGroup(dist.HashStore(), comm.get_rank(), comm.get_size())
    group._set_default_backend(KIND)
    group._register_backend(CPU, KIND, _comms._BackendWrapper(comm))
    group._set_group_name("hooked")
    return group


def states(backend: str = "host") -> list[tuple[str, str]]:
    """Name and state of what torch recorded, which says `completed` where the hook was told."""
    dump = json.loads(c10d._dump_fr_trace_json(backend=backend))
    return [(entry["profiling_name"], entry["state"]) for entry in dump.get("entries", [])]


def wait_until(expected: list[tuple[str, str]], backend: str = "host") -> None:
    """The hook may be told a moment after the work was waited for, on another thread."""
    limit = time.monotonic() + 20
    while states(backend) != expected:
        assert time.monotonic() < limit, (states(backend), expected)
        time.sleep(0.001)


def told(me: Rank) -> None:
    comm = _comms._new_comm("host", CPU, "hooked", me.store(), me.rank, me.size, 20_000, {})
    group = group_of(comm)
    assert group.supports_completion_hooks
    hook = c10d.FlightRecorderHook.attach(group, list(range(me.size)))
    tensor = torch.ones(3)
    group.allreduce([tensor]).wait()
    other = 1 - me.rank
    pending = group.recv([torch.empty(3)], other, 0)
    group.broadcast(tensor, 0).wait()
    name = f"host:recv {me.rank}<-{other}"
    before = [
        ("host:all_reduce", "completed"),
        (name, "scheduled"),
        ("host:broadcast", "completed"),
    ]
    wait_until(before)
    me.meet("nobody has sent")
    group.send([tensor], other, 0).wait()
    pending.wait()
    group._wait_for_pending_works()
    sent = f"host:send {me.rank}->{other}"
    assert states() == [(name, "completed") for name, _ in before] + [(sent, "completed")]

    # what fails is told to nobody
    comm.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(RuntimeError, match="time"):
        group.recv([tensor], other, 1).wait()
    comm.set_timeout(timedelta(seconds=20))
    group._wait_for_pending_works()
    assert states()[-1] == (name, "scheduled")

    # nor is anything that follows once the hook is gone
    count = len(states())
    hook.remove()
    group.allreduce([tensor]).wait()
    assert len(states()) == count
    me.meet("done")
    comm.abort()


def test_the_hook_is_told_of_what_succeeded_and_of_nothing_else(job):
    job(told, 2)


def recorded_by_torch(me: Rank) -> None:
    """torch attaches its recorder to what `init_process_group` and `new_group` make."""
    dist.init_process_group(
        "cpu:ferrocomm",
        init_method=f"file://{me.folder}/world",
        rank=me.rank,
        world_size=me.size,
        timeout=timedelta(seconds=20),
    )
    world, part = dist.distributed_c10d._get_default_group(), dist.new_group([0, 1])
    tensor = torch.ones(3)
    expected = []
    for group in (world, part):
        dist.all_reduce(tensor, group=group)
        expected.append(("ferrocomm:all_reduce", "completed"))
        wait_until(expected, "ferrocomm")
    dist.destroy_process_group()


def test_torch_records_what_runs_under_the_engines_name(job):
    job(recorded_by_torch, 2)


class Silent(torchcomms.TorchCommBackend):
    """Says nothing of how its operations end."""

    def all_reduce(self, tensor, op, async_op, options):
        pass


def silent(me: Rank) -> None:
    torchcomms.register_backend("silent", Silent)
    comm = torchcomms.new_comm("silent", "cpu", store=me.store(), name="silent")
    group = group_of(comm)
    assert not group.supports_completion_hooks
    with pytest.raises(NotImplementedError, match="backend silent has no"):
        group._register_on_completion_hook(print)
    comm.finalize()


def test_a_backend_in_python_is_not_taken_for_one_that_tells(job):
    job(silent, 1)
