"""The failure suite: killed and stopped peers, time-outs, mismatches, abort, Ctrl-C, fork, leaks.

    python tests/failures/run.py [--only TEXT] [--transport shm,tcp] [--ranks 2,4] [--full] [--list]
                                 [--at-once N]

Every operation of a communicator, over shared memory and over TCP. Jobs wait most of their time, so
some run at once. A case passes when every rank
that lives says so. How long promises took is printed; a case fails at a watchdog's limit, which
leaves room for a busy machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import groups  # noqa: E402
from board import Board  # noqa: E402
from cases import PROMISED, Job, Report  # noqa: E402
from ranks import Rank, RanksFailed, run_ranks  # noqa: E402

# Failures shown in full; all are counted.
SHOWN = 60


class Tally:
    """What all jobs came to."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped: list[str] = []
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.notes: list[str] = []

    def add(self, job: Job, reports: list[Report]) -> None:
        names = list(dict.fromkeys(name for report in reports for name in report))
        if not names:
            self.fail(job, "-", "the job reported no case")
        for name in names:
            faults = []
            for rank, report in enumerate(reports):
                if name not in report:
                    continue
                outcome = report[name]
                if outcome.fault:
                    faults.append(f"rank {rank}: {outcome.fault}")
                if outcome.seconds is not None:
                    self.seconds[job.name.split(":")[0]].append(outcome.seconds)
                if outcome.note.startswith("skipped"):
                    self.skipped.append(f"{job.described()}, {name}: {outcome.note}")
                elif outcome.note:
                    self.notes.append(f"{job.described()}, {name}, rank {rank}: {outcome.note}")
            if faults:
                self.fail(job, name, "\n".join(faults))
            else:
                self.passed += 1

    def take(self, other: Tally) -> None:
        """Adds what another tally holds."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes
        for group, values in other.seconds.items():
            self.seconds[group] += values

    def fail(self, job: Job, name: str, text: str) -> None:
        self.failed += 1
        if self.failed <= SHOWN:
            print(f"FAILED {job.described()}: {name}\n    " + text.replace("\n", "\n    "))
            sys.stdout.flush()


def body(me: Rank, job: Job, board: Board) -> Report:
    """What a process of a job does."""
    return job.body(me, board, *job.arguments)


def run(job: Job) -> tuple[Job, Tally, float]:
    """Runs a job; what it came to, and how long it took."""
    tally = Tally()
    start = time.monotonic()
    judge(job, tally)
    return job, tally, time.monotonic() - start


def judge(job: Job, tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="failures-") as folder:
        try:
            reports = run_ranks(
                body,
                job.size + job.extra,
                Path(folder),
                job,
                Board(),
                limit=job.limit,
                env={"FERROCOMM_HOST_TRANSPORT": job.transport} | job.env,
                dies=job.dies,
            )
        except RanksFailed as error:
            tally.fail(job, "the whole job", str(error)[-6000:])
            return
    tally.add(job, [report or {} for report in reports])


def closing(tally: Tally, seconds: dict[str, float]) -> int:
    for note in tally.notes:
        print(f"note: {note}")
    for skipped in tally.skipped:
        print(f"SKIPPED {skipped}")
    for group, spent in seconds.items():
        line = f"{group:<9} {spent:6.1f} s"
        taken = sorted(tally.seconds[group])
        if taken:
            late = sum(value > PROMISED for value in taken)
            line += (
                f"; from the event to the error: median {taken[len(taken) // 2] * 1000:.1f} ms, "
                f"longest {taken[-1] * 1000:.1f} ms of {len(taken)}, {late} beyond {PROMISED:g} s"
            )
        print(line)
    print(
        f"failures: {tally.passed - len(tally.skipped)} passed, {tally.failed} failed, "
        f"{len(tally.skipped)} skipped"
    )
    return 1 if tally.failed or not tally.passed else 0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="jobs whose description contains this")
    parser.add_argument("--transport", default="shm,tcp")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--full", action="store_true", help="every kill with every operation")
    parser.add_argument("--list", action="store_true", help="names the jobs and runs none")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run at a time")
    parser.add_argument("--slowest", type=int, default=0, help="show so many slowest jobs")
    chosen = parser.parse_args()
    # Told to end, it ends what it started and removes its folders.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sizes = [int(text) for text in chosen.ranks.split(",")]
    jobs = [
        job
        for job in groups.jobs(chosen.transport.split(","), sizes, chosen.full)
        if chosen.only in f"{job.described()} {job.arguments}"
    ]
    if chosen.list:
        for job in jobs:
            print(job.described(), *job.arguments)
        return 0
    tally = Tally()
    seconds: dict[str, float] = defaultdict(float)
    spent = []
    # Forked one by one, as the ranks of a job are: nothing of torch has to be loaded again.
    with multiprocessing.get_context("fork").Pool(chosen.at_once) as workers:
        for job, outcome, took in workers.imap_unordered(run, jobs):
            tally.take(outcome)
            spent.append((took, f"{job.described()} {job.arguments}"))
            seconds[job.name.split(":")[0]] += took
        # They end by themselves. The signal that leaving the block sends them is an exception in
        # them, and one that a finalizer swallows leaves a worker waiting for ever.
        workers.close()
        workers.join()
    for value, name in sorted(spent, reverse=True)[: chosen.slowest]:
        print(f"{value:6.1f} s  {name}")
    return closing(tally, seconds)


if __name__ == "__main__":
    sys.exit(main())
