"""Distributed checkpoints: saved at once and in the background, loaded, and sharded anew."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from job import Report, batch, digest, mean_over_ranks, run_as_script
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def make(mesh: DeviceMesh, seed: int) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> float:
    for step in steps:
        x, y = batch(step, dist.get_rank())
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return mean_over_ranks(loss)


def state_of(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parts = get_state_dict(model, optimizer)
    return dict(zip(("model", "optimizer"), parts, strict=True))


def save_and_resume(report: Report, mesh: DeviceMesh, folder: str) -> None:
    model, optimizer = make(mesh, 1)
    report("loss when saved", train(model, optimizer, range(3)))
    state = state_of(model, optimizer)
    dcp.save(state, checkpoint_id=f"{folder}/at once")
    dcp.async_save(state, checkpoint_id=f"{folder}/in the background").result()
    dist.barrier()
    expected = train(model, optimizer, range(3, 6))
    report("loss when continued", expected)
    for kind in ("at once", "in the background"):
        model, optimizer = make(mesh, 2)
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=f"{folder}/{kind}")
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        assert train(model, optimizer, range(3, 6)) == expected


def shard_anew(report: Report, mesh: DeviceMesh, folder: str) -> None:
    torch.manual_seed(3)
    whole = torch.randn(8, 8)
    place = f"{folder}/anew"
    dcp.save({"tensor": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=place)
    for placement in (Shard(1), Replicate()):
        state = {"tensor": distribute_tensor(torch.zeros(8, 8), mesh, [placement])}
        dcp.load(state, checkpoint_id=place)
        assert torch.equal(state["tensor"].full_tensor(), whole)
    report("sharded anew", digest([whole]))


def main(report: Report) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shared = [tempfile.mkdtemp(prefix="checkpoint_") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    try:
        save_and_resume(report, mesh, shared[0])
        shard_anew(report, mesh, shared[0])
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(shared[0])


if __name__ == "__main__":
    run_as_script(main)
