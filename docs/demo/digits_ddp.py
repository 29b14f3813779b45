"""Trains a small convolutional network on scikit-learn's handwritten digits with DDP.

    torchrun --standalone --nproc_per_node=2 docs/demo/digits_ddp.py --torchcomms

Ordinary torch.distributed code: `--torchcomms` sets one switch, and nothing else differs. Rank 0
writes one JSON object per line to standard output: progress while it trains, the result at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32
TEST_SHARE = 5  # every fifth digit is kept for testing


def say(**facts: Any) -> None:
    """Rank 0's line to whoever reads."""
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; images are (n, 1, 8, 8) in 0..1."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    test = torch.arange(len(y)) % TEST_SHARE == 0
    return x[~test], y[~test], x[test], y[test]


def network() -> nn.Module:
    """Two convolutions and a linear layer."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def share(count: int) -> torch.Tensor:
    """Which of `count` samples are this rank's; the same number on every rank."""
    return torch.arange(
        dist.get_rank(), count - count % dist.get_world_size(), dist.get_world_size()
    )


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epoch: int
) -> float:
    """Mean training loss over all ranks."""
    # every rank draws the same order and takes its own part of it
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
    mine = order[share(len(y))]
    total, batches = torch.zeros(()), mine.split(BATCH)
    for step, index in enumerate(batches):
        loss = F.cross_entropy(model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        say(epoch=epoch, step=step + 1, steps=len(batches))
    total /= len(batches)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the test digits that are read rightly, each rank reading its part."""
    mine = share(len(y))
    counts = torch.tensor([(model(x[mine]).argmax(1) == y[mine]).sum().item(), len(mine)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def served_by() -> dict[str, Any]:
    """Which engine served the world, with its counters where it is ours."""
    try:
        import torchcomms
    except ImportError as error:
        return {"served_by": "torch", "backend": str(error), "communicator": None}
    name = dist.group.WORLD.group_name
    groups = torchcomms.engine_info()["groups"]
    return next(g for g in groups if g["group"] == name and g["device"] == "cpu")


def main() -> None:
    """One rank of the training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchcomms", action="store_true", help="run on the Rust engine")
    parser.add_argument("--epochs", type=int, default=15)
    chosen = parser.parse_args()

    # one thread per rank, and sums in one order, so that two runs can be compared digit by digit
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if chosen.torchcomms:
        torch.distributed.config.use_torchcomms = True
    dist.init_process_group("gloo")

    x, y, test_x, test_y = digits()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = time.perf_counter()
    epochs = []
    for epoch in range(chosen.epochs):
        loss = train_epoch(model, optimizer, x, y, epoch)
        epochs.append({"loss": loss, "accuracy": accuracy(model, test_x, test_y)})
    dist.barrier()
    seconds = time.perf_counter() - start
    say(result={"epochs": epochs, "seconds": seconds, "served": served_by()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
