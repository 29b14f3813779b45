"""The call surface of torch.distributed on communicators gives what torch.distributed gives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed
from ranks import Rank
from torch import Tensor

import torchcomms
from torchcomms import distwrap


def init(dist: Any, me: Rank, name: str, **options: Any) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{me.folder / name}",
        rank=me.rank,
        world_size=me.size,
        timeout=timedelta(seconds=20),
        **options,
    )


def surface(dist: Any, me: Rank, group: Any) -> list[Any]:
    """Every operation; `dist` is one module or the other."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    results: list[Any] = []

    def x(*shape: int, add: float = 0.0) -> Tensor:
        count = int(torch.Size(shape).numel())
        results.append(torch.arange(float(count)).view(shape) + 10 * me.rank + add)
        return results[-1]

    def done(work: Any) -> None:
        if work is not None:
            work.wait()

    dist.all_reduce(x(3), group=group)
    done(dist.all_reduce(x(3), dist.ReduceOp.MAX, group, async_op=True))
    target = x(3)
    dist.reduce(target, group_dst=1, group=group)
    if rank != 1:
        results.pop()
    dist.broadcast(x(3), group_src=1, group=group)
    dist.all_gather([x(2) for _ in range(size)], x(2, add=1), group)
    dist.all_gather_into_tensor(x(size * 2), x(2), group)
    dist.all_gather_single(x(size * 2), x(2), group)
    dist.reduce_scatter(x(2), [x(2) for _ in range(size)], group=group)
    dist.reduce_scatter_tensor(x(2), x(size * 2), group=group)
    dist.reduce_scatter_single(x(2), x(size * 2), dist.ReduceOp.MAX, group)
    dist.all_to_all([x(2) for _ in range(size)], [x(2) for _ in range(size)], group)
    dist.all_to_all_single(x(size), x(size), group=group)
    dist.all_to_all_single(x(3), x(3), [1, 2] if rank == 0 else [2, 1], [1, 2][:: 1 - 2 * rank],
                           group=group) if size == 2 else None  # fmt: skip
    at_one = rank == 1
    dist.scatter(x(2), [x(2, add=i) for i in range(size)] if at_one else None,
                 group=group, group_src=1)  # fmt: skip
    dist.gather(x(2), [x(2) for _ in range(size)] if at_one else None, group=group, group_dst=1)
    done(dist.barrier(group, async_op=True))
    right, left = (rank + 1) % size, (rank - 1) % size
    if rank == 0:
        dist.send(x(2), group_dst=right, group=group)
        dist.recv(x(2), group_src=left, group=group, tag=7)
    else:
        results.append(dist.recv(x(2), group_src=left, group=group))
        dist.send(x(2), group_dst=right, group=group, tag=7 if right == 0 else 0)
    works = [dist.irecv(x(2), group_src=left, group=group)]
    works.append(dist.isend(x(2), group_dst=right, group=group))
    works += dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x(2, add=5), group_peer=right, group=group),
            dist.P2POp(dist.irecv, x(2), group_peer=left, group=group),
        ]
    )
    for work in works:
        done(work)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me.rank}, group)
    results.append(objects)
    gathered: list[Any] = [None] * size
    dist.gather_object(me.rank, gathered if at_one else None, group=group, group_dst=1)
    shared = [me.rank, "x"]
    dist.broadcast_object_list(shared, group=group, group_src=1)
    part: list[Any] = [None]
    dist.scatter_object_list(part, list(range(size)) if at_one else None, group=group, group_src=1)
    results += [gathered, shared, part]
    if rank == 0:
        dist.send_object_list([1, "a"], group_dst=1, group=group)
    elif at_one:
        received: list[Any] = [None, None]
        results.append(dist.recv_object_list(received, group_src=0, group=group))
        results.append(received)
    return results


def compared(me: Rank, ours: bool) -> list[Any]:
    dist: Any = distwrap if ours else torch.distributed
    options = {"use_torchcomms": True} if ours else {}
    init(dist, me, "world", **options)
    assert not torch.distributed.config.use_torchcomms
    results = [surface(dist, me, None)]
    pair = dist.new_group([0, 2])
    if me.rank in (0, 2):
        results.append(surface(dist, me, pair))
    else:
        assert dist.all_reduce(torch.ones(1), group=pair) is None
    if ours:
        check_groups(me, pair)
    dist.destroy_process_group()
    return results


def check_groups(me: Rank, pair: Any) -> None:
    comm = distwrap.get_torchcomms_instance()
    assert comm is distwrap.get_torchcomms_instance(tensor=torch.ones(1))
    if me.rank in (0, 2):
        assert distwrap.get_torchcomms_instance(pair).get_size() == 2
    # torch's gloo does not have it
    whole = torch.zeros(3) if me.rank == 2 else None
    distwrap.gather_single(torch.tensor([float(me.rank)]), whole, dst=2)
    assert whole is None or whole.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="no communicator serves this group on cuda"):
        distwrap.get_torchcomms_instance(device="cuda")
    with pytest.raises(ValueError, match="neither src nor group_src"):
        distwrap.broadcast(torch.ones(1))
    with pytest.raises(ValueError, match="both dst and group_dst"):
        distwrap.reduce(torch.ones(1), 0, group_dst=0)
    with pytest.raises(ValueError, match="each rank at most once"):
        distwrap.split_group(split_ranks=[[0, 1], [1]])
    part = distwrap.split_group(split_ranks=[[2, 0]], group_desc="ends")
    if me.rank == 1:
        assert part is distwrap.GroupMember.NON_GROUP_MEMBER
    else:
        assert distwrap.get_process_group_ranks(part) == [2, 0]
        assert distwrap.get_rank(part) == (0 if me.rank == 2 else 1)
        total = torch.tensor([float(me.rank)])
        distwrap.all_reduce(total, group=part)
        assert total.item() == 2.0
        # torch's own calls run on the same communicator
        torch.distributed.all_reduce(total, group=part)
        assert total.item() == 4.0
    served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
    assert served == {"ferrocomm"}
    # names that are not defined here are torch's
    assert distwrap.ReduceOp is torch.distributed.ReduceOp
    assert distwrap.monitored_barrier is torch.distributed.monitored_barrier


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_the_surface_gives_what_torch_gives(job):
    ours, stock = job(compared, 3, True), job(compared, 3, False)
    assert all(map(same, ours, stock))


def without(me: Rank) -> None:
    init(distwrap, me, "plain", use_torchcomms=False)
    x = torch.ones(2)
    distwrap.all_reduce(x)
    assert x.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="use_torchcomms=True"):
        distwrap.get_torchcomms_instance()
    distwrap.destroy_process_group()
    with pytest.raises(RuntimeError, match="no communicator serves this group"):
        init_fake(me)
    assert not torch.distributed.is_initialized()


def init_fake(me: Rank) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distwrap.init_process_group(
        "fake", rank=me.rank, world_size=me.size, store=FakeStore(), use_torchcomms=True
    )


def test_without_communicators_torch_serves(job):
    job(without, 1)
