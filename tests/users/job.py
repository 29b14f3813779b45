"""Shared by the jobs here: plain torch.distributed programs whose results are compared.

A job is a module with `main(report)`. It knows nothing of torchcomms: the switch
TORCH_DISTRIBUTED_USE_TORCHCOMMS, or torch.distributed.config, decides who serves. Run by itself

    torchrun --standalone --nproc_per_node=2 tests/users/ddp.py

it prints what it found, one line per result. With two ranks any right engine gives the same bits.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Report = Callable[[str, Any], None]


def batch(step: int, rank: int, rows: int = 8, columns: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, different on every rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, columns, generator=generator)
    return x, x.sum(1, keepdim=True) * 0.1 + x[:, :1] ** 2


def digest(tensors: Iterable[Tensor]) -> str:
    """A short fingerprint of every bit."""
    total = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        flat = whole.detach().contiguous().reshape(-1).view(torch.uint8)
        total.update(flat.numpy().tobytes())
    return total.hexdigest()[:16]


def mean_over_ranks(value: Tensor) -> float:
    """Mean of a scalar over all ranks."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def check_served() -> None:
    """Raises unless the groups are served by whom EXPECT_SERVED_BY names.

    For comparisons: torch falls back to its own backends without a word.
    """
    expected = os.environ.get("EXPECT_SERVED_BY")
    if expected is None:
        return
    import torchcomms

    served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
    if served != {expected}:
        raise RuntimeError(f"served by {served}, expected {expected}")


def printed(name: str, value: Any) -> None:
    """A report as one line of stdout, written at once so that ranks' lines do not mix."""
    sys.stdout.flush()
    os.write(1, f"RESULT rank {os.environ['RANK']} {name} = {value!r}\n".encode())


def run_as_script(main: Callable[[Report], None], *, make_world: bool = True) -> None:
    """Under torchrun: makes the world, runs the job, prints its results.

    Without `make_world` the job's own library makes it.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if make_world:
        dist.init_process_group("gloo")
        check_served()
    main(printed)
    if dist.is_initialized():
        dist.destroy_process_group()
