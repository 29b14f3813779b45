"""DDP: small buckets, gradient accumulation, unused parameters, compression hooks, Join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Report, batch, digest, mean_over_ranks, run_as_script
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    """With batch normalisation, whose buffers DDP broadcasts, and a branch for every other step."""

    def __init__(self, branch: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(32, 64), nn.BatchNorm1d(64)
        self.middle, self.last = nn.Linear(64, 64), nn.Linear(64, 1)
        self.branch = nn.Linear(64, 64) if branch else None
        self.take_branch = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.first(x)))
        taken = self.branch if self.branch is not None and self.take_branch else self.middle
        return self.last(F.relu(taken(h)))


def train(
    report: Report,
    name: str,
    *,
    steps: int = 4,
    branch: bool = False,
    accumulate: int = 1,
    hook: Callable[[DDP], None] | None = None,
    **options: Any,
) -> None:
    torch.manual_seed(1234)
    net = Net(branch)
    model = DDP(net, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if hook is not None:
        hook(model)
    rank = dist.get_rank()
    for step in range(steps):
        net.take_branch = branch and step % 2 == 0
        for part in range(accumulate):
            x, y = batch(step * accumulate + part, rank)
            if part < accumulate - 1:
                with model.no_sync():
                    F.mse_loss(model(x), y).backward()
            else:
                loss = F.mse_loss(model(x), y)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report(f"{name} loss {step}", mean_over_ranks(loss))
    report(f"{name} state", digest(net.state_dict().values()))


def hook_of(function: Any) -> Callable[[DDP], None]:
    return lambda model: model.register_comm_hook(None, function)


def power_sgd(model: DDP) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def uneven(report: Report) -> None:
    torch.manual_seed(1234)
    net = nn.Linear(32, 1)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    rank = dist.get_rank()
    with Join([model]):
        for step in range(3 + 2 * rank):
            x, y = batch(step, rank)
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    report("join state", digest(net.state_dict().values()))


def main(report: Report) -> None:
    train(report, "plain")
    train(report, "small buckets", bucket_cap_mb=0.005, gradient_as_bucket_view=True)
    train(report, "accumulated", accumulate=3, steps=3)
    train(report, "branch", branch=True, find_unused_parameters=True)
    train(report, "static", static_graph=True)
    train(report, "fp16", hook=hook_of(default_hooks.fp16_compress_hook))
    train(report, "bf16", hook=hook_of(default_hooks.bf16_compress_hook))
    train(report, "power sgd", hook=power_sgd)
    uneven(report)


if __name__ == "__main__":
    run_as_script(main)
