"""What a job does on every torch: the plain collectives and DDP on the world group, by the switch.

Under torchrun, with TORCH_DISTRIBUTED_USE_TORCHCOMMS=1. Uses nothing that torch 2.11 lacks. Rank 0
prints one line per check that passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torchcomms


def all_reduce(rank: int, size: int) -> None:
    tensor = torch.arange(1000.0) + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * torch.arange(1000.0) + sum(range(size)))
    tensor = torch.tensor([rank], dtype=torch.int64)
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    assert tensor.item() == size - 1


def all_gather(rank: int, size: int) -> None:
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_gather(outputs, torch.full((3,), float(rank)))
    assert [output[0].item() for output in outputs] == list(range(size))
    output = torch.empty(2 * size)
    dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    assert output[::2].tolist() == list(range(size))


def broadcast(rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.full((5,), float(rank), dtype=torch.float64)
        dist.broadcast(tensor, root)
        assert tensor.unique().tolist() == [root]


def send_recv(rank: int, size: int) -> None:
    following, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(4)
    sent = dist.isend(torch.full((4,), float(rank)), following, tag=7)
    dist.recv(got, before, tag=7)
    sent.wait()
    assert got.unique().tolist() == [before]


def ddp(rank: int, size: int) -> None:
    """Gradients are the means over all ranks, as one process finds them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    alone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    alone.load_state_dict(model.state_dict())
    data = torch.randn(size, 6, 8, dtype=torch.float64)
    wrapped = DDP(model)
    for _ in range(3):
        wrapped(data[rank]).square().mean().backward()
        (sum(alone(part).square().mean() for part in data) / size).backward()
        with torch.no_grad():
            for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
                assert torch.allclose(mine.grad, reference.grad, rtol=1e-12, atol=1e-14)
                mine -= 0.1 * mine.grad
                reference -= 0.1 * reference.grad
                mine.grad = reference.grad = None


CHECKS: tuple[Callable[[int, int], None], ...] = (all_reduce, all_gather, broadcast, send_recv, ddp)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
    if served != {"ferrocomm"}:
        raise RuntimeError(f"served by {served}")
    for check in CHECKS:
        check(rank, size)
        dist.barrier()
        if rank == 0:
            print(f"CHECK {check.__name__} passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
