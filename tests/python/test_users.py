"""Ordinary torch.distributed programs: at two ranks every result has the bits of stock gloo."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

JOBS = ("ddp", "fsdp2", "pipeline", "tensor_parallel", "checkpoint")


def results(me: Rank, name: str, switch: bool) -> list[tuple[str, Any]]:
    torch.use_deterministic_algorithms(True)
    module = importlib.import_module(name)
    me.world(switch=switch, timeout=60)
    found: list[tuple[str, Any]] = []
    module.main(lambda key, value: found.append((key, value)))
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("name", JOBS)
def test_same_results_as_stock(job, name):
    stock = job(results, 2, name, False, limit=120)
    ours = job(results, 2, name, True, limit=120)
    assert all(len(found) >= 3 for found in stock)
    assert ours == stock
