"""What torch's profiler is told of calls on the host engine: `record_param_comms`."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from ranks import Rank
from torch.profiler import ProfilerActivity, profile


def operations(group: dist.ProcessGroup, rank: int) -> None:
    tensor, part, whole = torch.ones(4), torch.ones(2), torch.ones(8)
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, group=group, async_op=True).wait()
    dist.broadcast(tensor, 1, group=group)
    dist.reduce(tensor, 1, group=group)
    dist.all_gather_into_tensor(whole, tensor, group=group)
    dist.all_to_all_single(
        torch.empty(4), tensor, [[1, 3], [3, 1]][rank], [[1, 3], [3, 1]][rank], group=group
    )
    dist.scatter(part, list(tensor.chunk(2)) if rank == 0 else None, group=group)
    dist.barrier(group=group)
    if rank == 0:
        dist.send(tensor, 1, group=group)
    else:
        dist.recv(tensor, 0, group=group)


def trace_of(me: Rank, group: dist.ProcessGroup) -> list[dict]:
    operations(group, me.rank)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        operations(group, me.rank)
    path = me.folder / f"trace-{me.rank}.json"
    profiler.export_chrome_trace(str(path))
    return [e for e in json.loads(path.read_text())["traceEvents"] if "name" in e]


def profiled(me: Rank) -> None:
    me.world()
    ours = trace_of(me, dist.group.WORLD)
    records = [e["args"] for e in ours if e["name"] == "record_param_comms"]
    records.sort(key=lambda facts: facts["Seq"])
    names = (
        "all_reduce all_reduce broadcast reduce all_gather_single all_to_all_single scatter barrier"
    )
    message = "recv" if me.rank else "send"
    assert [facts["Collective name"] for facts in records] == [*names.split(), message]
    assert all(facts["Group size"] == 2 for facts in records)
    assert [facts["Is asynchronized op"] for facts in records[:2]] == [False, True]
    assert records[2]["Rank"] == 1, "the root"
    gathered = records[4]
    assert (gathered["In msg nelems"], gathered["Out msg nelems"]) == (4, 8)
    assert gathered["dtype"] == "Float"
    assert records[5]["Out split size"] == str([[1, 3], [3, 1]][me.rank])
    group = dist.distributed_c10d._get_default_group()
    assert {facts["Process Group Name"] for facts in records} == {group.group_name}
    dist.destroy_process_group()


def test_the_profiler_is_told_of_calls_and_their_arguments(job):
    job(profiled, 2)
