"""The command line of `python -m torchcomms selftest`: starts ranks, shows progress, reports.

Must not know what is checked: ranks tell it in lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

LIMIT = 120.0
_BAR = 30
# What a launcher may have set for this process and is not meant for the ranks it starts.
_LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `selftest`."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start here (2)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds in all ({LIMIT:g})")


def run(chosen: argparse.Namespace) -> int:
    """Runs the test; 1 when something is wrong, 2 when the options are."""
    fault = unusable(chosen.device, chosen.ranks)
    if fault:
        print(f"selftest: {fault}", file=sys.stderr)
        return 2
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ferrocomm-selftest-") as folder:
        results = Results(chosen.ranks)
        ranks = [Rank(chosen.device, n, chosen.ranks, Path(folder)) for n in range(chosen.ranks)]
        try:
            collect(ranks, results, start + chosen.limit)
        finally:
            for rank in ranks:
                rank.end()
    print(results.summary(time.monotonic() - start))
    return 0 if results.passed() else 1


def unusable(device: str, ranks: int) -> str | None:
    """Why a test with these options cannot start."""
    if not 1 <= ranks <= 16:
        return f"--ranks {ranks}: expected 1 to 16"
    if device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if count < ranks:
            return (
                f"--device cuda --ranks {ranks}: NCCL needs a GPU per rank and this machine has "
                f"{count}: use --ranks {max(1, count)}" + ("" if count else " on one with a GPU")
            )
    return None


class Rank:
    """A rank's process; what it prints on standard output is its report."""

    def __init__(self, device: str, rank: int, size: int, folder: Path) -> None:
        """Starts it."""
        self.rank = rank
        self.errors = folder / f"errors{rank}"
        self.part = b""
        where = device if device == "cpu" else f"{device}:{rank}"
        program = [sys.executable, "-m", "torchcomms._selftest._rank", where, str(folder / "store")]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(os.environ, rank, size),
            )

    @property
    def out(self) -> IO[bytes]:
        """Where its report comes from."""
        if self.process.stdout is None:
            raise RuntimeError("the rank was started without a pipe")
        return self.process.stdout

    def lines(self) -> list[dict[str, Any]] | None:
        """What it has reported since; None when it will report no more."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            return None
        *whole, self.part = (self.part + data).split(b"\n")
        return [json.loads(line) for line in whole if line.startswith(b"{")]

    def end(self) -> None:
        """Ends it where it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.out.close()


@dataclass
class Results:
    """What the ranks have reported."""

    ranks: int
    total: int = 0
    facts: str = ""
    done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def add(self, rank: int, fact: Mapping[str, Any]) -> None:
        """A line of a rank's report."""
        if "total" in fact:
            self.total = fact["total"]
            self.facts = f"{fact['backend']}, {fact['transport'].get('transport', '')}"
            return
        self.done += 1
        if fact["skipped"]:
            self.skipped[fact["line"]] += rank == 0
        elif fact["fault"] is not None:
            self.faults.append(f"rank {rank}: {fact['line']} {fact['name']}: {fact['fault']}")
        else:
            self.counts[fact["line"]] += rank == 0

    def passed(self) -> bool:
        """Whether every rank ran every check without a fault."""
        return not self.faults and not self.lost and 0 < self.total * self.ranks == self.done

    def summary(self, seconds: float) -> str:
        """The report."""
        lines = [
            f"{'ok' if self.counts[line] else '--':<9}{line:<22}{self.counts[line]:>5} checks"
            + (f", {self.skipped[line]} not offered" if self.skipped[line] else "")
            for line in dict.fromkeys((*self.counts, *self.skipped))
        ]
        lines += [f"FAILED   {fault}" for fault in (*self.faults, *self.lost)]
        verdict = "passed" if self.passed() else "FAILED"
        count = sum(self.counts.values())
        lines.append(
            f"selftest {verdict}: {self.ranks} ranks on {self.facts or 'nothing'}, {count} checks, "
            f"{seconds:.1f} s"
        )
        return "\n".join(lines)


def collect(ranks: list[Rank], results: Results, deadline: float) -> None:
    """Takes the reports of all ranks until they end or the time is up."""
    bar = sys.stderr if sys.stderr.isatty() else None
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.out, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                results.lost += [
                    f"rank {key.data.rank} did not end within the limit"
                    for key in selector.get_map().values()
                ]
                break
            for key, _ in ready:
                rank = key.data
                lines = rank.lines()
                if lines is None:
                    selector.unregister(rank.out)
                    _ended(rank, results)
                for fact in lines or ():
                    results.add(rank.rank, fact)
            if bar is not None:
                _draw(bar, results)
    if bar is not None:
        bar.write("\r\033[K")


def _ended(rank: Rank, results: Results) -> None:
    code = rank.process.wait()
    if code != 0 and not results.faults:
        said = rank.errors.read_text(errors="replace").strip()[-2000:]
        results.lost.append(f"rank {rank.rank} ended with {code}\n{said}")


def _draw(bar: IO[str], results: Results) -> None:
    whole = max(1, results.total * results.ranks)
    filled = _BAR * results.done // whole
    bar.write(f"\r[{'#' * filled}{'.' * (_BAR - filled)}] {results.done}/{whole}")
    bar.flush()


def _environment(environ: Mapping[str, str], rank: int, size: int) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _LAUNCHER}
    # The ranks meet in a file, so no address or port is needed.
    return kept | {
        "TORCHCOMM_RANK": str(rank),
        "TORCHCOMM_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
