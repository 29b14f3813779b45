"""How far sums in 16 bits are from the exact sum, and what the order of additions is worth.

    torchrun --nproc_per_node=4 tests/users/rounding.py

For `run.py --rounding`, which runs it on both engines. Two kinds of lines:

* SUM dtype mean worst once each: distance of an all_reduce from the exact sum, in units of the last
  place, and the share of elements that are the sum in 32 bits, rounded once, and that are additions
  one after the other from some rank on, each rounded.
* TRAINING name last spread: of a training, a number of its last step, and by how much of itself it
  changes at most, of all steps, when the ranks change places, which changes nothing but the order
  of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import ddp
import fsdp2
import torch
import torch.distributed as dist
from job import Report, check_served
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh

COUNT = 200_000
STEPS = 4
DTYPES = (torch.bfloat16, torch.float16)
HOOKS = {
    "bf16": ddp.hook_of(default_hooks.bf16_compress_hook),
    "fp16": ddp.hook_of(default_hooks.fp16_compress_hook),
    "power sgd": ddp.power_sgd,
}


def with_hook(name: str) -> Callable[[Report], None]:
    return lambda report: ddp.train(report, "", steps=STEPS, hook=HOOKS[name])


def sharded(report: Report) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fsdp2.train(report, "", mesh, steps=STEPS, policy=fsdp2.HALF)


# name: the job, what it trains, which number is watched
TRAININGS: dict[str, tuple[ModuleType, Callable[[Report], None], str]] = {
    **{f"DDP, {name}: loss": (ddp, with_hook(name), "loss") for name in HOOKS},
    "FSDP2, fp16: loss": (fsdp2, sharded, "loss"),
    "FSDP2, fp16: norm of gradients": (fsdp2, sharded, "norm"),
}


def rounded_each(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sums around the ring, from each rank on and both ways, in which every addition rounds."""
    size = len(parts)
    found = []
    for first in range(size):
        for way in (1, -1):
            total = parts[first]
            for step in range(1, size):
                total = total + parts[(first + way * step) % size]
            found.append(total)
    return found


def sums(dtype: torch.dtype) -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    mine = (0.01 * torch.randn(COUNT, generator=generator)).to(dtype)
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    total = mine.clone()
    dist.all_reduce(total)
    exact = torch.stack([part.double() for part in parts]).sum(0)
    place = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
    away = ((total.double() - exact).abs() / place)[exact != 0]
    once = parts[0].float()
    for part in parts[1:]:
        once = once + part.float()
    each = torch.zeros(COUNT, dtype=torch.bool)
    for possible in rounded_each(parts):
        each |= total == possible
    shares = [(total == once.to(dtype)).double().mean().item(), each.double().mean().item()]
    return " ".join(f"{value:.3f}" for value in (away.mean().item(), away.max().item(), *shares))


def spread(job: ModuleType, train: Callable[[Report], None], kind: str) -> tuple[float, float]:
    """The number at the last step with ranks in their places, and its spread over all rotations."""
    plain = job.batch
    size = dist.get_world_size()
    found: list[list[float]] = []
    for turn in range(size):
        job.batch = lambda step, rank, turn=turn: plain(step, (rank + turn) % size)
        values: dict[str, float] = {}
        train(values.__setitem__)
        found.append([values[f" {kind} {step}"] for step in range(STEPS)])
    job.batch = plain
    steps = zip(*found, strict=True)
    return found[0][-1], max((max(step) - min(step)) / abs(step[0]) for step in steps)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_served()
    for dtype in DTYPES:
        line = sums(dtype)
        if dist.get_rank() == 0:
            print(f"SUM {str(dtype).removeprefix('torch.')} {line}", flush=True)
    for name, training in TRAININGS.items():
        last, changes = spread(*training)
        if dist.get_rank() == 0:
            print(f"TRAINING {name.replace(' ', '_')} {last!r} {changes:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
