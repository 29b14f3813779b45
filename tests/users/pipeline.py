"""Pipeline parallel: sends and receives between stages, under four schedules."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Report, batch, digest, run_as_script
from torch import nn
from torch.distributed import pipelining

LAYERS = 8  # one for each of two stages on four ranks
SCHEDULES = (
    ("gpipe", pipelining.ScheduleGPipe, 1),
    ("1f1b", pipelining.Schedule1F1B, 1),
    ("interleaved", pipelining.ScheduleInterleaved1F1B, 2),
    ("zero bubble", pipelining.ScheduleInterleavedZeroBubble, 2),
)


def layers() -> list[nn.Module]:
    torch.manual_seed(1234)
    return [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(LAYERS)]


def train(report: Report, name: str, schedule: Any, per_rank: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = size * per_rank
    width = LAYERS // stages
    made = layers()
    numbers = [size * turn + rank for turn in range(per_rank)]
    parts = [nn.Sequential(*made[n * width : (n + 1) * width]) for n in numbers]
    mine = [
        pipelining.PipelineStage(part, number, stages, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    plan = schedule(mine[0] if per_rank == 1 else mine, n_microbatches=4, loss_fn=F.mse_loss)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(3):
        x, _ = batch(step, 0, rows=16)
        losses: list[torch.Tensor] = []
        arguments = (x,) if rank == 0 else ()
        last = {"target": x.roll(1, 1), "losses": losses} if rank == size - 1 else {}
        plan.step(*arguments, **last)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, src=size - 1)
        report(f"{name} loss {step}", loss.item())
    report(f"{name} parameters", digest(parameters))


def main(report: Report) -> None:
    for name, schedule, per_rank in SCHEDULES:
        train(report, name, schedule, per_rank)


if __name__ == "__main__":
    run_as_script(main)
