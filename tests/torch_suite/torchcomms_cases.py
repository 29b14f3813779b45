"""Cases on the helpers that torch keeps for tests of a package `torchcomms`; pytest runs them.

torch.testing._internal.common_distributed has the base class, which starts ranks, turns the switch
on and makes the world over a store of its own; the cases that torch's repository builds on it are
not in the wheel. The ranks stay from case to case, on one world.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing._internal.common_distributed import C10dTorchCommsTestBase

import torchcomms


def same(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


class _OnTheEngine(C10dTorchCommsTestBase):
    device_type = "cpu"

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        torch.set_num_threads(1)
        super()._init_pg(rank, world_size, rdvz_file)
        served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
        if served != {"ferrocomm"}:
            raise AssertionError(f"served by {served}")

    def test_sum(self) -> None:
        tensor = torch.arange(100.0) + self.rank
        dist.all_reduce(tensor)
        expected = self.world_size * torch.arange(100.0) + sum(range(self.world_size))
        same(tensor, expected)

    def test_lists(self) -> None:
        ranks = range(self.world_size)
        gathered = [torch.empty(2, dtype=torch.int64) for _ in ranks]
        dist.all_gather(gathered, torch.tensor([self.rank, 7]))
        same([part.tolist() for part in gathered], [[rank, 7] for rank in ranks])
        mine = torch.empty(3)
        dist.reduce_scatter(mine, [torch.full((3,), float(rank)) for rank in ranks])
        same(mine, torch.full((3,), float(self.rank * self.world_size)))
        swapped = [torch.empty(1) for _ in ranks]
        dist.all_to_all(swapped, [torch.tensor([10.0 * self.rank + rank]) for rank in ranks])
        same([part.item() for part in swapped], [10.0 * r + self.rank for r in ranks])

    def test_point_to_point(self) -> None:
        after, before = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        got = torch.empty(4)
        batch = [
            dist.P2POp(dist.isend, torch.full((4,), float(self.rank)), after),
            dist.P2POp(dist.irecv, got, before),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        same(got, torch.full((4,), float(before)))

    def test_objects(self) -> None:
        found: list[object] = [None] * self.world_size
        dist.all_gather_object(found, {"rank": self.rank})
        assert found == [{"rank": rank} for rank in range(self.world_size)]

    def test_groups(self) -> None:
        pair = dist.new_group([0, 1])
        part = dist.split_group(split_ranks=[[1, 0], list(range(2, self.world_size))])
        if self.rank < 2:
            for group in (pair, part):
                tensor = torch.ones(3)
                dist.all_reduce(tensor, group=group)
                same(tensor, torch.full((3,), 2.0))
            same(dist.get_group_rank(part, 0), 1)
        dist.barrier()

    def test_functional(self) -> None:
        group = dist.group.WORLD
        total = functional.all_reduce(torch.ones(5), "sum", group)
        same(total, torch.full((5,), float(self.world_size)))
        parts = functional.all_gather_tensor(torch.tensor([self.rank]), 0, group)
        same(parts, torch.arange(self.world_size))

    def test_dtensor(self) -> None:
        mesh = init_device_mesh("cpu", (self.world_size,))
        whole = torch.arange(6.0 * self.world_size).reshape(-1, 3)
        spread = distribute_tensor(whole, mesh, [Shard(0)])
        same(spread.full_tensor(), whole)
        product = spread @ DTensor.from_local(torch.eye(3), mesh, [Replicate()])
        same(product.redistribute(mesh, [Shard(1)]).full_tensor(), whole)

    def test_ddp(self) -> None:
        torch.manual_seed(0)
        model = DDP(nn.Linear(4, 2))
        model(torch.full((3, 4), float(self.rank))).sum().backward()
        mean = 3.0 * sum(range(self.world_size)) / self.world_size
        same(model.module.weight.grad, torch.full((2, 4), mean))


class OfTwo(_OnTheEngine):
    world_size = 2


class OfThree(_OnTheEngine):
    world_size = 3


del _OnTheEngine
