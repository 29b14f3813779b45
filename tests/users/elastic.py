"""A rank dies in the middle of training; torchrun starts all again, which go on from a checkpoint.

Run with `torchrun --max-restarts=1` and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: torchrun's own store
still holds the keys of the attempt before, on which stock gloo hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Report, batch, digest, mean_over_ranks, run_as_script
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 6
DIES_AFTER = 3


def main(report: Report) -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    saved = Path(os.environ["ELASTIC_FOLDER"]) / "state.pt"
    torch.manual_seed(1234)
    net = nn.Linear(32, 1)
    model = DDP(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    first = 0
    if attempt > 0:
        state = torch.load(saved)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        report("went on at", first)
    for step in range(first, STEPS):
        x, y = batch(step, dist.get_rank())
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if attempt > 0:
            report(f"loss {step}", mean_over_ranks(loss))
        elif step == DIES_AFTER:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            if dist.get_rank() == 0:
                torch.save(state, saved)
            dist.barrier()
            if dist.get_rank() == 1:
                os._exit(17)
    report("parameters", digest(net.parameters()))


if __name__ == "__main__":
    run_as_script(main)
