"""Runs every job of this folder under torchrun on stock gloo and on Ferrocomm, and compares.

    python tests/users/run.py [--ranks 2 4] [--only steps|rounding] [--write] [JOB ...]

At two ranks every result must be the same to the last digit: a sum of two does not depend on its
order. At four it does, and the two engines add in different orders, so numbers may differ by 1e-6
of themselves there and digests of whole states are not compared. Where gradients travel in 16 bits
the difference is that of their rounding: stock rounds each of the three additions, the engine adds
in 32 bits and rounds once (`rounding.py` shows it). Prints the table job x engine x loss x wall
time, then the time of a DDP and an FSDP2 step and what rounding is worth; `--write` puts these into
docs/torch-distributed.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import launch_and_end

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "torch-distributed.md"
# What each needs beyond torch; `make test-users` installs it.
JOBS = {
    "ddp": (2, 4),
    "fsdp2": (2, 4),
    "pipeline": (2, 4),
    "tensor_parallel": (2, 4),
    "checkpoint": (2, 4),
    "functional": (2, 4),
    "accelerated": (2, 4),
    "hf_trainer": (2, 4),
    "lightning_ddp": (2, 4),
    "elastic": (2,),
}
ENGINES = {"stock": "torch", "ours": "ferrocomm"}
TOLERANCE = 1e-6
# Of what is summed in 16 bits, by the name of the result: about what stock's own results change by
# when its ranks change places, which docs/torch-distributed.md has. Norms of gradients change more
# than losses do; a float16 is rounded by up to 5e-4 of itself.
ROUGH = {"bf16 ": 1e-3, "fp16 loss": 2e-4, "fp16 norm": 5e-4}
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
        code, output = launch_and_end(
            [*command, str(HERE / f"{job}.py")], environment(engine, folder), LIMIT
        )
    if code != 0:
        raise SystemExit(f"{job} on {engine} at {ranks} ranks ended with {code}:\n{output[-8000:]}")
    return output


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


def agree(name: str, ours: Any, stock: Any, ranks: int) -> bool:
    if ours == stock:
        return True
    if ranks <= 2 or type(ours) is not type(stock):
        return False
    if isinstance(ours, float):
        rough = [bound for kind, bound in ROUGH.items() if kind in name]
        return abs(ours - stock) <= (rough or [TOLERANCE])[0] * max(abs(ours), abs(stock))
    # a digest of bits, which the order of additions decides
    return isinstance(ours, str)


def differences(ours: Run, stock: Run, ranks: int) -> list[str]:
    names = sorted(ours.results.keys() | stock.results.keys())
    return [
        f"{name}: stock {stock.results.get(name)!r}, ours {ours.results.get(name)!r}"
        for name in names
        if not agree(name, ours.results.get(name), stock.results.get(name), ranks)
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


def step_times(ranks: list[int]) -> list[str]:
    """The time of a training step, as a table."""
    table = ["| step | ranks | ours, ms | stock, ms | stock / ours |", "|---|---|---|---|---|"]
    for size in ranks:
        lines = launch("step_time", "ours", size).splitlines()
        for line in (line for line in lines if line.startswith("STEP ")):
            _, name, _, ours, stock = line.split()
            ratio = float(stock) / float(ours)
            table.append(f"| {name} | {size} | {ours} | {stock} | {ratio:.2f} |")
    return table


def rounding() -> list[str]:
    """How far 16-bit sums and trainings over them are from what they should be, as two tables."""
    sums = [
        "| all_reduce, 4 ranks | engine | mean error | worst | rounded once | rounded each time |",
        "|---|---|---|---|---|---|",
    ]
    trainings = ["| training | engine | last step | changes by, ranks moved |", "|---|---|---|---|"]
    for engine in ("ours", "stock"):
        output = launch("rounding", engine, 4).splitlines()
        for line in output:
            kind, _, rest = line.partition(" ")
            name, *cells = rest.split()
            row = f"| {name.replace('_', ' ')} | {engine} | {' | '.join(cells)} |"
            if kind == "SUM":
                sums.append(row)
            elif kind == "TRAINING":
                trainings.append(row)
    return [*sums, "", *trainings]


def write(name: str, table: list[str]) -> None:
    """Puts a table between its marks in the page."""
    text = PAGE.read_text()
    begin, end = (f"<!-- {word}: tests/users/run.py {name} -->" for word in ("begin", "end"))
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"{PAGE} has no place for {name}")
    PAGE.write_text(f"{before}{begin}\n\n" + "\n".join(table) + f"\n\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", choices=("steps", "rounding"), help="no job, but that")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    asked = parser.parse_args()
    differing = runs = 0
    if not asked.only:
        print("job              ranks  engine loss of rank 0         wall s  compared")
        for job in asked.jobs or JOBS:
            for ranks in asked.ranks:
                if ranks in JOBS[job]:
                    differing += bool(compare(job, ranks))
                    runs += 1
    tables = {"steps": lambda: step_times(asked.ranks), "rounding": rounding}
    for name, make in tables.items():
        if asked.only == name or not (asked.only or asked.jobs):
            table = make()
            print("", *table, sep="\n", flush=True)
            runs += 1
            if asked.write:
                write(name, table)
    print(f"users: {runs - differing} passed, {differing} failed")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
