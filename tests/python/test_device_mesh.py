"""DeviceMesh over communicators: who is where, and training on it has the bits of torch's mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import Rank
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torchcomms
from torchcomms.device_mesh import _flatten_with_comm, init_device_mesh


def train(model: nn.Module, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        loss = F.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def on_one_dimension(me: Rank, ours: bool) -> list[list[float]]:
    if ours:
        comm = me.comm("dp")
        mesh = init_device_mesh((comm,), ("dp",))
        groups = torchcomms.engine_info()["groups"]
        assert {group["served_by"] for group in groups} == {"ferrocomm"}
        assert mesh.get_group("dp") is dist.group.WORLD
    else:
        me.world(switch=False)
        mesh = dist.init_device_mesh("cpu", (me.size,), mesh_dim_names=("dp",))
    ddp = DistributedDataParallel(network(), device_mesh=mesh)
    sharded: Any = network()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    results = [train(ddp, me.rank), train(sharded, me.rank)]
    # torch can make groups of its own on the store that came with the communicator
    extra = dist.new_group([1, 0], backend="gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones, group=extra)
    assert ones.item() == me.size
    dist.destroy_process_group()
    if ours:
        assert comm.state() == "finalized"
    return results


def test_training_has_the_bits_of_torchs_mesh(job):
    assert job(on_one_dimension, 2, True) == job(on_one_dimension, 2, False)


def on_two_dimensions(me: Rank) -> None:
    world = me.comm("world")
    # placed by columns, which torch's own mesh would not do
    dp, tp = me.rank % 2, me.rank // 2
    comms = (
        world.split([2 * tp, 2 * tp + 1], "dp"),
        world.split([dp, dp + 2], "tp"),
    )
    mesh = init_device_mesh(comms, ("dp", "tp"), _global_comm=world)
    assert mesh.mesh.tolist() == [[0, 2], [1, 3]]
    assert mesh.get_coordinate() == (dp, tp)
    assert dist.get_process_group_ranks(mesh.get_group("tp")) == [dp, dp + 2]
    value = torch.tensor([float(me.rank)])
    dist.all_reduce(value, group=mesh["dp"].get_group())
    assert value.item() == 4 * tp + 1

    whole = torch.arange(16.0).view(4, 4)
    part = distribute_tensor(whole, mesh["tp"], [Shard(0)], src_data_rank=None)
    assert torch.equal(part.to_local(), whole.view(2, 2, 4)[tp])
    assert torch.equal(part.full_tensor(), whole)

    model: Any = network()
    fully_shard(model, mesh=mesh["dp"])
    train(model, dp)

    ranks = mesh.mesh.flatten().tolist()
    flat = world.split(ranks, "all")
    with pytest.raises(ValueError, match="does not fit"):
        _flatten_with_comm(mesh, "all", flat, sorted(ranks))
    _flatten_with_comm(mesh, "all", flat, ranks, mesh._layout)
    assert mesh.get_group("all").size() == 4
    total = torch.ones(3)
    dist.all_reduce(total, group=mesh["all"].get_group())
    assert total.tolist() == [4.0] * 3
    with pytest.raises(ValueError, match="already"):
        _flatten_with_comm(mesh, "tp", flat, ranks)
    dist.destroy_process_group()
    assert {comm.state() for comm in (world, flat, *comms)} == {"finalized"}


def test_ranks_lie_where_their_communicators_say(job):
    job(on_two_dimensions, 4)


def what_is_wrong(me: Rank) -> None:
    comm = me.comm()
    with pytest.raises(ValueError, match="1 entries and mesh_dim_names 2"):
        init_device_mesh((comm,), ("a", "b"))
    with pytest.raises(ValueError, match="each name once"):
        init_device_mesh((comm, comm), ("a", "a"))
    with pytest.raises(TypeError, match="'b' has no communicator, got None"):
        init_device_mesh((comm, None), ("a", "b"))
    with pytest.raises(ValueError, match="do not span a mesh"):
        init_device_mesh((comm, comm), ("a", "b"), _global_comm=comm)
    dist.destroy_process_group()


def test_what_does_not_make_a_mesh_is_said(job):
    job(what_is_wrong, 2)
