"""Tensor parallel and DTensor: column and row wise layers, sequence parallel, redistributions."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import Report, digest, run_as_script
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallel(mesh: DeviceMesh, sequence: bool, local_loss: bool) -> Model:
    torch.manual_seed(1234)
    model = Model()
    between = Shard(1) if sequence else Replicate()
    outside = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if local_loss else Replicate(),
            use_local_output=not local_loss,
        ),
    }
    inside = {
        "up": ColwiseParallel(input_layouts=between),
        "down": RowwiseParallel(output_layouts=between),
    }
    if sequence:
        outside["norm"] = SequenceParallel()
        inside["norm"] = SequenceParallel()
    parallelize_module(model, mesh, outside)
    for block in model.blocks:
        parallelize_module(block, mesh, inside)
    return model


def train(report: Report, name: str, mesh: DeviceMesh, *, sequence: bool, local_loss: bool) -> None:
    model = parallel(mesh, sequence, local_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(77 * step)
        tokens = torch.randint(0, 64, (4, 17), generator=generator)
        logits = model(tokens[:, :16]).flatten(0, 1)
        if local_loss:
            with loss_parallel():
                loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
                loss.backward()
        else:
            loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
        report(f"{name} loss {step}", whole.item())
    report(f"{name} parameters", digest(p for _, p in sorted(model.named_parameters())))


def redistribute(report: Report, mesh: DeviceMesh) -> None:
    torch.manual_seed(1234)
    whole = torch.randn(8, 6)
    for before, after in ((Shard(0), Replicate()), (Shard(0), Shard(1)), (Replicate(), Shard(1))):
        moved = distribute_tensor(whole, mesh, [before]).redistribute(placements=[after])
        assert torch.equal(moved.full_tensor(), whole)
        report(f"{before} to {after}", digest([moved.to_local()]))
    mine = whole * (mesh.get_local_rank() + 1)
    for after in (Replicate(), Shard(0), Shard(1)):
        moved = DTensor.from_local(mine, mesh, [Partial()]).redistribute(placements=[after])
        report(f"partial to {after}", digest([moved.to_local()]))
    for op in ("max", "avg"):
        report(f"partial {op}", digest([DTensor.from_local(mine, mesh, [Partial(op)])]))
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    report("uneven", uneven.full_tensor().tolist())


def main(report: Report) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    train(report, "plain", mesh, sequence=False, local_loss=False)
    train(report, "sequence", mesh, sequence=True, local_loss=False)
    train(report, "local loss", mesh, sequence=True, local_loss=True)
    redistribute(report, mesh)


if __name__ == "__main__":
    run_as_script(main)
