"""torch's functional collectives, eagerly and in graphs of torch.compile, and a sharded layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from job import Report, digest, run_as_script
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

BACKENDS = ("aot_eager", "inductor")


def everything(x: Tensor) -> list[Tensor]:
    """One of each on the world group; results of some feed others."""
    group = dist.group.WORLD
    size = dist.get_world_size()
    total = functional.all_reduce(x, "sum", group)
    largest = functional.all_reduce(total + x, "max", group)
    gathered = functional.all_gather_tensor(largest, 0, group)
    part = functional.reduce_scatter_tensor(gathered * 2, "sum", 0, group)
    swapped = functional.all_to_all_single(part, None, None, group)
    root = functional.broadcast(swapped, 1, group)
    coalesced = functional.all_reduce_coalesced([root, total], "sum", group)
    together = functional.all_gather_into_tensor_coalesced(coalesced, group)
    return [total, largest, gathered, part, swapped, root, *coalesced, *together, x * size]


def gradients(x: Tensor) -> Tensor:
    group = dist.group.WORLD
    gathered = functional.all_gather_tensor_autograd(x.sin(), 0, group)
    part = functional.reduce_scatter_tensor_autograd(gathered.square(), "sum", 0, group)
    return functional.all_to_all_single_autograd(part, None, None, group).sum()


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    value = function(leaf)
    value.backward()
    return [value.detach(), leaf.grad]


def train(model: nn.Module, compiled: nn.Module) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        loss = compiled(torch.randn(4, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main(report: Report) -> None:
    size = dist.get_world_size()
    # Whole numbers in floats: their sums do not depend on the order.
    x = torch.arange(4.0 * size).reshape(2 * size, 2) + 100 * dist.get_rank()
    report("eager", digest(everything(x)))
    wave = (x / 50).double()
    report("eager derivative", [tensor.sum().item() for tensor in derivative(gradients, wave)])
    for backend in BACKENDS:
        torch._dynamo.reset()
        compiled = torch.compile(everything, fullgraph=True, backend=backend)
        report(f"{backend}", digest(compiled(x)))
        compiled = torch.compile(gradients, fullgraph=True, backend=backend)
        found = [tensor.sum().item() for tensor in derivative(compiled, wave)]
        report(f"{backend} derivative", found)
    torch._dynamo.reset()
    torch.manual_seed(0)
    ddp = DDP(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    report("compiled ddp loss", train(ddp, torch.compile(ddp, backend="aot_eager")))
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    layer = nn.Linear(16, 8 * size, bias=False)

    layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(0)]))
    spread = distribute_tensor(torch.ones(4, 16), mesh, [Replicate()])
    report("dtensor", digest([layer(spread).redistribute(mesh, [Replicate()]).to_local()]))


if __name__ == "__main__":
    run_as_script(main)
