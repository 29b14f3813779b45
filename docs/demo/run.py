"""The demo: one training on torch's own gloo and on the Rust engine, side by side.

    python docs/demo/run.py [--ranks 2] [--epochs 15]

Exit code 1 when the two runs differ by more than 1e-5, or when the engine did not serve the group
that was to run on it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

SCRIPT = Path(__file__).with_name("digits_ddp.py")
TOLERANCE = 1e-5
LIMIT_SECONDS = 300


def train(title: str, options: list[str], ranks: int, epochs: int, console: Console) -> Any:
    """Runs the training under torchrun with a progress bar; returns its result."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={ranks}", str(SCRIPT), f"--epochs={epochs}", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCH_DISTRIBUTED")}
    environment["OMP_NUM_THREADS"] = "1"
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeElapsedColumn(),
    )
    result = None
    with (
        tempfile.TemporaryFile("w+") as errors,
        Progress(*columns, console=console) as progress,
        subprocess.Popen(
            ["timeout", str(LIMIT_SECONDS), *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        bar = progress.add_task(title, total=None)
        assert process.stdout is not None
        for line in process.stdout:
            facts = json.loads(line) if line.startswith("{") else {}
            if "step" in facts:
                done = facts["epoch"] * facts["steps"] + facts["step"]
                progress.update(bar, total=epochs * facts["steps"], completed=done)
            result = facts.get("result", result)
        code = process.wait()
        errors.seek(0)
        said = errors.read()
    if code != 0 or result is None:
        console.print(f"[bold red]the training on {title} failed with exit code {code}[/]")
        console.print(said[-4000:], markup=False, highlight=False)
        sys.exit(1)
    return result


def epochs_table(stock: Any, ours: Any) -> tuple[Table, float]:
    """Loss and accuracy of both runs, epoch by epoch, and the largest difference."""
    table = Table(title="training loss and test accuracy")
    table.add_column("epoch", justify="right")
    for column in ("loss: gloo", "loss: ferrocomm", "accuracy: gloo", "accuracy: ferrocomm"):
        table.add_column(column, justify="right")
    table.add_column("largest difference", justify="right")
    worst = 0.0
    for number, (a, b) in enumerate(zip(stock["epochs"], ours["epochs"], strict=True), 1):
        difference = max(abs(a[key] - b[key]) for key in ("loss", "accuracy"))
        worst = max(worst, difference)
        table.add_row(
            str(number),
            f"{a['loss']:.6f}",
            f"{b['loss']:.6f}",
            f"{a['accuracy']:.4f}",
            f"{b['accuracy']:.4f}",
            f"{difference:.1e}",
        )
    return table, worst


def engine_table(stock: Any, ours: Any) -> Table:
    """Who served, how long it took, and what went through the engine on rank 0."""
    table = Table(title="who served")
    table.add_column("")
    table.add_column("torch's own gloo")
    table.add_column("use_torchcomms = True")
    served = [run["served"] for run in (stock, ours)]
    table.add_row("served by", *(f"{s['served_by']} ({s['backend']})" for s in served))
    comm = ours["served"]["communicator"] or {}
    table.add_row("engine", "-", f"{comm.get('engine', '-')}, transport {comm.get('transport')}")
    table.add_row("wall time", *(f"{run['seconds']:.2f} s" for run in (stock, ours)))
    for name, used in comm.get("operations", {}).items():
        table.add_row(f"{name}, rank 0", "-", f"{used['count']} calls, {used['bytes']:,} bytes")
    return table


def is_ours(run: Any) -> bool:
    """Whether the Rust engine served the run, and counted what it did."""
    served = run["served"]
    comm = served["communicator"]
    if served["served_by"] != "ferrocomm" or comm is None or comm["engine"] != "host":
        return False
    return bool(comm["operations"].get("all_reduce", {}).get("count", 0) > 0)


def main() -> int:
    """Runs both trainings; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    chosen = parser.parse_args()
    console = Console()
    console.print(f"digits: {chosen.ranks} ranks, {chosen.epochs} epochs, twice")
    stock = train("torch's own gloo", [], chosen.ranks, chosen.epochs, console)
    ours = train("use_torchcomms = True", ["--torchcomms"], chosen.ranks, chosen.epochs, console)

    table, worst = epochs_table(stock, ours)
    console.print(table)
    console.print(engine_table(stock, ours))
    faults = []
    if is_ours(stock):
        faults.append("the run that was to use torch's own gloo was served by the Rust engine")
    if not is_ours(ours):
        faults.append("THE RUST ENGINE DID NOT SERVE the run with use_torchcomms = True")
    if not worst <= TOLERANCE:
        faults.append(f"the runs differ by {worst:.2e}, more than {TOLERANCE:.0e}")
    for fault in faults:
        console.print(f"[bold red]{fault}[/]")
    if not faults:
        console.print(
            f"[bold green]the Rust engine served the group; both runs agree within "
            f"{TOLERANCE:.0e}[/]"
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
