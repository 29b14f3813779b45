"""DistributedDataParallel on the engine: gradients are the mean of those of the ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Rank
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import torchcomms


class Net(nn.Module):
    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 1)
        self.spare = nn.Linear(16, 16) if spare else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def net(**arguments: bool) -> Net:
    torch.manual_seed(3)
    return Net(**arguments)


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(50 * step + rank))


def expected_gradients(size: int) -> list[torch.Tensor]:
    model = net()
    sum(model(batch(r)).pow(2).mean() for r in range(size)).div(size).backward()
    return [p.grad for p in model.parameters()]


def gradients(me: Rank, hook: str, options: dict[str, object]) -> None:
    me.world()
    model = net(spare=bool(options.get("find_unused_parameters")))
    wrapped = DistributedDataParallel(model, **options)
    if hook:
        wrapped.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(batch(me.rank)).pow(2).mean().backward()
    tolerance = {"bf16": 3e-2, "fp16": 4e-3}.get(hook, 1e-6)
    found = [p.grad for n, p in model.named_parameters() if not n.startswith("spare")]
    for got, expected in zip(found, expected_gradients(me.size), strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    # torch's logger reads our backend as its own gloo: 2 threads, from our own options
    logged = wrapped._get_ddp_logging_data()
    assert logged["backend_name"] == "gloo"
    assert logged["gloo_num_threads"] == 2
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("hook", "options"),
    [
        ("", {}),
        ("", {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True}),
        ("", {"static_graph": True}),
        ("", {"find_unused_parameters": True}),
        ("bf16", {}),
        ("fp16", {}),
    ],
)
def test_gradients(job, hook, options):
    job(gradients, 2, hook, options)


def uneven(me: Rank) -> None:
    me.world()
    model = DistributedDataParallel(net())
    with Join([model]):
        for step in range(2 + me.rank):
            model(batch(me.rank, step)).pow(2).mean().backward()
    total = torch.cat([p.detach().flatten() for p in model.parameters()])
    others = [torch.empty_like(total) for _ in range(me.size)]
    dist.all_gather(others, total)
    assert torch.equal(others[0], others[1])
    dist.destroy_process_group()


def test_join_with_unequal_batches(job):
    job(uneven, 2)


def trained(me: Rank, switch: bool) -> list[float]:
    me.world(switch=switch)
    served = {g["served_by"] for g in torchcomms.engine_info()["groups"]}
    assert served == {"ferrocomm" if switch else "torch"}
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(10):
        loss = model(batch(me.rank, step)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


def test_two_ranks_train_to_the_same_bits_as_stock(job_over):
    assert job_over(trained, 2, True) == job_over(trained, 2, False)


def sharded(me: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    me.world()
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (me.size,)))
    model(batch(me.rank)).pow(2).mean().backward()
    for parameter, expected in zip(model.parameters(), expected_gradients(me.size), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected)
    dist.destroy_process_group()


def test_fsdp2(job_over):
    job_over(sharded, 2)
