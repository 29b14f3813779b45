"""How far sums in 16 bits are from the exact sum, and what the order of additions is worth.

    torchrun --nproc_per_node=4 tests/users/rounding.py

For `run.py --rounding`, which runs it on both engines. Two kinds of lines:

* SUM dtype mean worst once each: distance of an all_reduce from the exact sum, in units of the last
  place, and the share of elements that are the sum in 32 bits, rounded once, and that are additions
  one after the other from some rank on, each rounded.
* LOSS name loss spread: of a DDP training, the last loss, and by how much of itself it changes when
  the ranks change places, which changes nothing but the order of additions.
"""

from __future__ import annotations

import ddp
import torch
import torch.distributed as dist
from job import check_served
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

COUNT = 200_000
STEPS = 4
DTYPES = (torch.bfloat16, torch.float16)
HOOKS = {
    "bf16": ddp.hook_of(default_hooks.bf16_compress_hook),
    "fp16": ddp.hook_of(default_hooks.fp16_compress_hook),
    "power sgd": ddp.power_sgd,
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


def losses(name: str) -> tuple[float, float]:
    """The last loss with ranks in their places, and the relative spread over all rotations."""
    plain = ddp.batch
    found = []
    size = dist.get_world_size()
    for turn in range(size):
        ddp.batch = lambda step, rank, turn=turn: plain(step, (rank + turn) % size)
        values: dict[str, float] = {}
        ddp.train(values.__setitem__, name, steps=STEPS, hook=HOOKS[name])
        found.append(values[f"{name} loss {STEPS - 1}"])
    ddp.batch = plain
    return found[0], (max(found) - min(found)) / abs(found[0])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_served()
    for dtype in DTYPES:
        line = sums(dtype)
        if dist.get_rank() == 0:
            print(f"SUM {str(dtype).removeprefix('torch.')} {line}", flush=True)
    for name in HOOKS:
        loss, spread = losses(name)
        if dist.get_rank() == 0:
            print(f"LOSS {name.replace(' ', '_')} {loss!r} {spread:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
