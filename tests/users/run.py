"""Runs every job of this folder under torchrun on stock gloo and on Ferrocomm, and compares.

    python tests/users/run.py [--ranks 2 4] [--steps-only] [JOB ...]

At two ranks every result must be the same to the last digit: a sum of two does not depend on its
order. At four it does, and the two engines add in different orders, so losses may differ by 1e-6
of themselves there and digests of whole states are not compared. Ends with the table
job x engine x loss x wall time, and with the time of a DDP and an FSDP2 step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What each needs beyond torch; `make test-users` installs it.
JOBS = {
    "ddp": (2, 4),
    "fsdp2": (2, 4),
    "pipeline": (2, 4),
    "tensor_parallel": (2, 4),
    "checkpoint": (2, 4),
    "accelerated": (2, 4),
    "hf_trainer": (2, 4),
    "lightning_ddp": (2, 4),
    "elastic": (2,),
}
ENGINES = {"stock": "torch", "ours": "ferrocomm"}
TOLERANCE = 1e-6
LIMIT = 300


@dataclass(frozen=True)
class Run:
    """What a job on one engine came to; results are named "rank R name"."""

    results: dict[str, Any]
    seconds: float


def environment(engine: str, folder: str) -> dict[str, str]:
    ours = engine == "ours"
    return os.environ | {
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1" if ours else "0",
        "EXPECT_SERVED_BY": ENGINES[engine],
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # for the job that is restarted; see there
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "ELASTIC_FOLDER": folder,
    }


def launch(job: str, engine: str, ranks: int) -> str:
    """Output of the job; raises SystemExit with it when the job fails."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    command += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    command += ["--max-restarts=1"] if job == "elastic" else []
    with tempfile.TemporaryDirectory(prefix="users_") as folder:
        done = subprocess.run(
            [*command, str(HERE / f"{job}.py")],
            env=environment(engine, folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"{job} on {engine} at {ranks} ranks failed:\n{done.stdout[-8000:]}")
    return done.stdout


def run(job: str, engine: str, ranks: int) -> Run:
    start = time.monotonic()
    output = launch(job, engine, ranks)
    results = {}
    for line in output.splitlines():
        if "RESULT " in line:
            name, _, value = line.partition("RESULT ")[2].partition(" = ")
            results[name] = literal_eval(value)
    if len(results) < 3:
        raise SystemExit(f"{job} on {engine} at {ranks} ranks reported {len(results)} results")
    return Run(results, time.monotonic() - start)


def agree(ours: Any, stock: Any, ranks: int) -> bool:
    if ours == stock:
        return True
    if ranks <= 2 or type(ours) is not type(stock):
        return False
    if isinstance(ours, float):
        return abs(ours - stock) <= TOLERANCE * max(abs(ours), abs(stock))
    # a digest of bits, which the order of additions decides
    return isinstance(ours, str)


def differences(ours: Run, stock: Run, ranks: int) -> list[str]:
    names = sorted(ours.results.keys() | stock.results.keys())
    return [
        f"{name}: stock {stock.results.get(name)!r}, ours {ours.results.get(name)!r}"
        for name in names
        if not agree(ours.results.get(name), stock.results.get(name), ranks)
    ]


def last_loss(results: dict[str, Any]) -> str:
    losses = [
        value
        for name, value in results.items()
        if name.startswith("rank 0 ") and "loss" in name.split() and isinstance(value, float)
    ]
    return repr(losses[-1]) if losses else "-"


def compare(job: str, ranks: int) -> int:
    """Prints the job's lines of the table; how many results differ."""
    stock, ours = (run(job, engine, ranks) for engine in ("stock", "ours"))
    found = differences(ours, stock, ranks)
    verdict = f"{len(ours.results)} results, " + ("same" if not found else f"{len(found)} DIFFER")
    for engine, one in (("stock", stock), ("ours", ours)):
        print(
            f"{job:<16} {ranks:>5}  {engine:<6} {last_loss(one.results):<22} {one.seconds:>6.1f}  "
            f"{verdict if engine == 'ours' else ''}",
            flush=True,
        )
    for line in found[:20]:
        print(f"    {line}", flush=True)
    return len(found)


def step_times(ranks: list[int]) -> None:
    print("\nstep                ranks  ours ms  stock ms  stock/ours")
    for size in ranks:
        for line in launch("step_time", "ours", size).splitlines():
            if line.startswith("STEP "):
                _, name, _, ours, stock = line.split()
                ratio = float(stock) / float(ours)
                print(f"{name:<20}{size:>5} {ours:>8} {stock:>9} {ratio:>11.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps-only", action="store_true", help="only the time of a step")
    asked = parser.parse_args()
    differing = runs = 0
    if not asked.steps_only:
        print("job              ranks  engine loss of rank 0         wall s  compared")
        for job in asked.jobs or JOBS:
            for ranks in asked.ranks:
                if ranks in JOBS[job]:
                    differing += bool(compare(job, ranks))
                    runs += 1
    if asked.steps_only or not asked.jobs:
        step_times(asked.ranks)
    print(f"users: {runs - differing} passed, {differing} failed")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
