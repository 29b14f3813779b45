"""Runs every check of the Makefile in order and ends with a table of what each came to.

    python tests/tools/run_all.py [--full] [NAME ...]

A check that fails does not keep the others from running. A check fails when its command does, when
it takes longer than its limit, and when its output does not say how much was checked: a runner that
found nothing to run has not passed. What each check runs is the Makefile's target `test-NAME`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# How long a check that was told to stop may take to do so.
GRACE = 10.0
NUMBERS = re.compile(r"(\d[\d,]*) (?:source )?([a-z]+)")
# Words for what a runner counts; any other is no count.
MEANINGS = {
    "passed": "passed",
    "failed": "failed",
    "error": "failed",
    "errors": "failed",
    "skipped": "skipped",
    "ignored": "skipped",
    "xfailed": "skipped",
    "files": "passed",
    "crates": "passed",
    "symbols": "passed",
}
CARGO = r"^ *Summary \[|^test result:"


@dataclass(frozen=True)
class Check:
    """One target of the Makefile."""

    target: str
    limit: int  # seconds; guards against a hang on a busy machine, not a measure of speed
    closing: str  # pattern of the lines that say how much was checked


CHECKS = [
    Check("test-rustfmt", 60, r"^rustfmt:"),
    Check("test-clippy", 600, r"^clippy:"),
    Check("test-clang-format", 120, r"^clang-format:"),
    Check("test-ruff", 60, r"^\d+ files? already formatted|^\d+ files? would be"),
    Check("test-mypy", 300, r"^Success:|^Found \d+"),
    Check("test-header", 600, CARGO),
    Check("test-rust", 600, CARGO),
    Check("test-c", 300, r"^c tests:"),
    Check("test-cpp", 300, r"^c\+\+ tests:|^run_later_test:"),
    Check("test-exports", 60, r"^exports:"),
    Check("test-python", 900, r"^=+ .* in [\d.]+s"),
    Check("test-conformance", 900, r"^conformance:|^=+ .* in [\d.]+s"),
    Check("test-failures", 900, r"^failures:"),
    Check("test-matrix", 900, r"^torch-matrix:|^c10d table:"),
    Check("test-suite-quick", 300, r"^torch suite:"),
    Check("test-docs", 300, r"^docs:"),
    Check("test-models", 600, CARGO),
    Check("test-simgpu", 900, rf"{CARGO}|^=+ .* in [\d.]+s"),
]
FULL = [
    Check("test-selftest", 900, r"^selftests:"),
    Check("test-reconfigure", 1800, r"^reconfigure:"),
    Check("test-hosts", 1800, r"^hosts:"),
    Check("sanitize", 3600, r"^(c|c\+\+) tests:|^sanitize:"),
    Check("test-conformance-full", 3600, r"^conformance:"),
    Check("test-suite", 3600, r"^torch suite|^=+ .* in [\d.]+s"),
    Check("test-users", 3600, r"^users:"),
    Check("test-titan", 3600, r"^torchtitan:"),
    Check("demo", 900, r"the Rust engine served the group"),
]


@dataclass(frozen=True)
class Outcome:
    """What one check came to."""

    name: str
    verdict: str
    counts: Counter[str]
    closing: str
    seconds: float


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a check and what it started; first in a way that lets it end its own children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def output_of(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, bool]:
    """What the check prints, shown as it comes, and whether it came to its end in time."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    text = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(pipe, 1 << 16)
            if not part:
                return text.decode(errors="replace"), True
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            text += part
    return text.decode(errors="replace"), False


def count(lines: list[str]) -> Counter[str]:
    """How much was checked, added up over a check's closing lines."""
    counts: Counter[str] = Counter()
    for line in lines:
        for number, word in NUMBERS.findall(line):
            if word in MEANINGS:
                counts[MEANINGS[word]] += int(number.replace(",", ""))
    return counts


def run(check: Check) -> Outcome:
    """Runs one check."""
    name = check.target.removeprefix("test-")
    print(f"\n=== {name} ===", flush=True)
    start = time.monotonic()
    command = ["make", "--no-print-directory", check.target, "BUILT=1"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            text, ended = output_of(process, start + check.limit)
        except BaseException:
            stop(process)
            raise
        if not ended:
            stop(process)
    closing = [line.strip("= ") for line in text.splitlines() if re.search(check.closing, line)]
    counts = count(closing)
    if not ended:
        verdict = f"TOOK MORE THAN {check.limit} s"
    elif process.returncode != 0 or counts["failed"]:
        verdict = "FAILED"
    elif check in CHECKS and counts["passed"] == 0:
        verdict = "CHECKED NOTHING"
    else:
        verdict = "ok"
    last = closing[-1] if closing else "-"
    return Outcome(name, verdict, counts, last, time.monotonic() - start)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes, one line each."""
    width = max(len(outcome.verdict) for outcome in outcomes)
    head = f"{'check':<13} {'result':<{width}} {'passed':>7} {'failed':>7} {'skipped':>7} {'s':>6}"
    lines = [f"{head}  closing line"]
    for o in outcomes:
        numbers = " ".join(f"{o.counts[key]:>7}" for key in ("passed", "failed", "skipped"))
        lines.append(f"{o.name:<13} {o.verdict:<{width}} {numbers} {o.seconds:>6.0f}  {o.closing}")
    return "\n".join(lines)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run; without: all")
    parser.add_argument("--full", action="store_true", help="the long ones too")
    chosen = parser.parse_args()
    checks = CHECKS + FULL if chosen.full else CHECKS
    if chosen.names:
        known = {check.target.removeprefix("test-"): check for check in CHECKS + FULL}
        unknown = [name for name in chosen.names if name not in known]
        if unknown:
            parser.error(f"no such check: {', '.join(unknown)}; there are {', '.join(known)}")
        checks = [known[name] for name in chosen.names]
    outcomes = [run(check) for check in checks]
    bad = [outcome.name for outcome in outcomes if outcome.verdict != "ok"]
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"\n{table(outcomes)}\n")
    verdict = f"not ok: {', '.join(bad)}" if bad else "all ok"
    print(f"{len(outcomes)} checks in {seconds:.0f} s, {verdict}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
