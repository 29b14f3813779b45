"""FSDP2: full and mixed precision, accumulation, gradient clipping, forced sums, full state."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Report, batch, digest, run_as_script
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

HALF = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)


def network() -> nn.Sequential:
    torch.manual_seed(1234)
    blocks = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(32, 1))


def train(
    report: Report,
    name: str,
    mesh: DeviceMesh,
    *,
    policy: MixedPrecisionPolicy | None = None,
    steps: int = 4,
    accumulate: int = 1,
    force_sum: bool = False,
) -> None:
    model: Any = network()
    options = {"mesh": mesh} | ({"mp_policy": policy} if policy else {})
    for layer in model[:3]:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if force_sum:
        for part in model.modules():
            if hasattr(part, "set_force_sum_reduction_for_comms"):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        for part in range(accumulate):
            model.set_requires_gradient_sync(part == accumulate - 1)
            x, y = batch(step * accumulate + part, dist.get_rank())
            loss = F.mse_loss(model(x).float(), y)
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        report(f"{name} loss {step}", total.item())
        report(f"{name} norm {step}", norm.full_tensor().item())
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=whole)
    report(f"{name} state", digest(state[key] for key in sorted(state)))


def main(report: Report) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    train(report, "fp32", mesh)
    train(report, "bf16", mesh, policy=mixed)
    train(report, "fp16", mesh, policy=HALF)
    train(report, "accumulated", mesh, accumulate=2, steps=3)
    train(report, "sums", mesh, force_sum=True)


if __name__ == "__main__":
    run_as_script(main)
