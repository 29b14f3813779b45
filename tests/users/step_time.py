"""How long a training step takes, DDP and FSDP2, on the engine and on stock gloo in turns.

    TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 torchrun --nproc_per_node=2 tests/users/step_time.py

Both groups live in the same processes; rounds of steps alternate between them, so that what else
the machine does falls on both. Rank 0 prints medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import check_served
from torch import nn
from torch.distributed import config
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

ROUNDS = 12
STEPS = 4
WIDTH = 1024


def network() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*layers)


def with_ddp(group: dist.ProcessGroup) -> nn.Module:
    return DDP(network(), process_group=group)


def with_fsdp(group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    model = network()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def round_of(model: nn.Module) -> Callable[[], float]:
    """Trains a few steps and returns milliseconds per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)

    def run() -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(STEPS):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return 1e3 * (time.perf_counter() - start) / STEPS

    return run


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_served()
    config.use_torchcomms = False
    groups = {"ours": dist.group.WORLD, "stock": dist.new_group(backend="gloo")}
    for name, make in (("DDP", with_ddp), ("FSDP2", with_fsdp)):
        runs = {engine: round_of(make(group)) for engine, group in groups.items()}
        times: dict[str, list[float]] = {engine: [] for engine in runs}
        for turn in range(ROUNDS + 1):
            for engine, run in runs.items():
                spent = run()
                if turn > 0:  # the first is for warming up
                    times[engine].append(spent)
        ours, stock = (statistics.median(times[engine]) for engine in ("ours", "stock"))
        if dist.get_rank() == 0:
            print(f"STEP {name} {dist.get_world_size()} {ours:.2f} {stock:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
