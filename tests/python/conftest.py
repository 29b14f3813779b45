"""Fixtures: `job` runs a function as N ranks, `job_over` once over each transport."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

# The scripts of tests/users are plain torch.distributed programs; tests here run their parts.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "users"))

# One core each is what the ranks of a test get; more threads would only fight for the machine.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., list[Any]]:
    """`job(body, size, *arguments, limit=, env=, dies=)`; see `ranks.run_ranks`."""
    count = 0

    def run(body: Callable[..., Any], size: int, *arguments: Any, **options: Any) -> list[Any]:
        nonlocal count
        count += 1
        folder = tmp_path / f"job{count}"
        folder.mkdir()
        return run_ranks(body, size, folder, *arguments, **options)

    return run


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Name of a transport for FERROCOMM_HOST_TRANSPORT."""
    return str(request.param)


@pytest.fixture
def job_over(job: Callable[..., list[Any]], transport: str) -> Callable[..., list[Any]]:
    """`job` over one transport; every test that uses it runs once per transport."""

    def run(body: Callable[..., Any], size: int, *arguments: Any, **options: Any) -> list[Any]:
        env = {"FERROCOMM_HOST_TRANSPORT": transport} | options.pop("env", {})
        return job(body, size, *arguments, env=env, **options)

    return run
