"""The conformance suite: operations, dtypes, sizes, layouts and modes against a plain reference.

    python tests/conformance/run.py [--ranks 2,4] [--transport shm,tcp] [--seed S] [--ops NAME,…]
                                    [--reads on|off|auto]
    python tests/conformance/run.py --full [--budget SECONDS]
    python tests/conformance/run.py --case ID            one case again
    python tests/conformance/run.py --rank R --size N --store tcp://HOST:PORT|file:PATH

Without --full: cases that cover every pair of values of any two factors, all corners, and random
programs. With it: also cases drawn from the full product until the budget is spent. The last form
is one rank of a job that something else has started, on this machine or another; the store is
served by rank 0 or lies in a file that all can reach; the transport is FERROCOMM_HOST_TRANSPORT's,
and FERROCOMM_DIRECT_READS is what --reads is of the others: on, so that the path is tried which a
machine may not choose by itself.

The ranks of a job are processes that run all its cases. Reductions are expected in rank order, to
the last bit, where shared memory carries them, and else within n roundings; see --order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import corners  # noqa: E402
import factors  # noqa: E402
import pairwise  # noqa: E402
import rank as one_rank  # noqa: E402
import session  # noqa: E402
import torch  # noqa: E402
from factors import Case, Named  # noqa: E402
from ranks import Rank, RanksFailed, run_ranks  # noqa: E402

# Guards against a hang of a whole job; each case has its own, shorter one.
JOB_LIMIT = 1500.0
# Cases of one round of a job in --full; between rounds the budget is looked at.
ROUND = 150
# A job whose processes died is started again behind the case that they died in.
ATTEMPTS = 4
# So many failures are shown in full.
SHOWN = 40

_stores: list[object] = []


@dataclass
class Tally:
    """What all jobs came to."""

    passed: int = 0
    failed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def fail(self, case: Case | Named, text: str) -> None:
        self.failed += 1
        if self.failed <= SHOWN:
            print(f"FAILED {case.described()}")
            print("    " + text.replace("\n", "\n    "))
            print(f"    again: python tests/conformance/run.py --case '{case}'", flush=True)


def exact(job: str, order: str) -> bool:
    return order == "rank" or (order == "auto" and factors.transport_of(job) == "shm")


def named_cases(job: str, seed: int, programs: int, operations: Sequence[str]) -> list[Named]:
    """The corners and the random programs of a job; none when single operations are asked for."""
    if len(operations) < len(factors.OPERATIONS):
        return []
    cases = [Named(seed, "corner", name, job) for name in corners.CORNERS]
    kinds = itertools.cycle(("mixed", "async", "shuffled"))
    for number, kind in zip(range(programs), kinds, strict=False):
        cases.append(Named(seed * 100 + number, "program", f"200-{kind}", job))
    return cases


def pairwise_cases(jobs: Sequence[str], operations: Sequence[str], seed: int) -> list[Case]:
    rows = pairwise.cover(factors.factors(jobs, operations), factors.fits, seed)
    return [Case(seed * 10_000 + number, **row) for number, row in enumerate(rows)]


def sampled_cases(job: str, operations: Sequence[str], seed: int, turn: int) -> list[Case]:
    chance = random.Random(f"{seed} {job} {turn}")
    rows = pairwise.sample(factors.factors([job], operations), factors.fits, ROUND, chance)
    return [Case(chance.randrange(1, 1 << 30), **row) for row in rows]


def body(me: Rank, cases: Sequence[Case | Named], in_order: bool) -> int:
    """What a process of a job does."""
    store = session.serve_store(str(me.folder), me.rank, me.size)
    # Kept until the process ends, which is when all ranks have reported: rank 0 serves the others.
    _stores.append(store)
    with open(me.folder / f"report{me.rank}", "a") as report:
        failures = one_rank.serve(me.rank, me.size, store, cases, in_order, report)
    return failures


def run_job(job: str, cases: Sequence[Case | Named], order: str, reads: str, tally: Tally) -> None:
    """Runs the cases of one job; after a crash, those behind the case that crashed."""
    waiting = list(cases)
    for _ in range(ATTEMPTS):
        if not waiting:
            return
        with tempfile.TemporaryDirectory(prefix="conformance-") as name:
            folder = Path(name)
            crash = ""
            try:
                run_ranks(
                    body,
                    factors.ranks_of(job),
                    folder,
                    waiting,
                    exact(job, order),
                    limit=JOB_LIMIT,
                    env={
                        "FERROCOMM_HOST_TRANSPORT": factors.transport_of(job),
                        "FERROCOMM_DIRECT_READS": reads,
                    },
                )
            except RanksFailed as error:
                crash = str(error)
            waiting = _account(folder, waiting, crash, tally)
    if waiting:
        tally.failed += len(waiting)
        print(f"FAILED {len(waiting)} cases of {job} were not run: too many before them failed")


def _account(
    folder: Path, cases: Sequence[Case | Named], crash: str, tally: Tally
) -> list[Case | Named]:
    """Counts what the reports say; what is still to be run."""
    by_text = {str(case): case for case in cases}
    verdicts: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("report*")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["verdict"] != "started":
                verdicts.setdefault(line["case"], line)
                seconds = tally.seconds.get(line["case"], 0.0)
                tally.seconds[line["case"]] = max(seconds, line["seconds"])
    for text, line in verdicts.items():
        if line["verdict"] == "passed":
            tally.passed += 1
        else:
            tally.fail(by_text[text], line["text"])
    rest = [case for case in cases if str(case) not in verdicts]
    if crash and rest:
        tally.fail(rest[0], f"the processes ended in it:\n{crash[-12000:]}")
        return rest[1:]
    if rest:
        # given up: once more would give up as well
        tally.failed += len(rest)
        print(f"FAILED {len(rest)} cases were not run: too many before them failed", flush=True)
        return []
    if crash:
        print(f"FAILED at the end of a job:\n{crash[-6000:]}", flush=True)
        tally.failed += 1
    return rest


def run_all(chosen: argparse.Namespace) -> Tally:
    """Every job one after the other."""
    begun = time.monotonic()
    tally = Tally()
    jobs = [
        f"{ranks}/{transport}"
        for ranks in chosen.ranks
        for transport in chosen.transport
        # one rank has nobody to carry anything to
        if ranks > 1 or transport == chosen.transport[0]
    ]
    rows = pairwise_cases(jobs, chosen.ops, chosen.seed)
    for job in jobs:
        start = time.monotonic()
        cases: list[Case | Named] = [case for case in rows if case.job == job]
        cases += named_cases(job, chosen.seed, chosen.programs, chosen.ops)
        before = tally.passed, tally.failed
        run_job(job, cases, chosen.order, chosen.reads, tally)
        print(
            f"{job}: {tally.passed - before[0]} passed, {tally.failed - before[1]} failed "
            f"in {time.monotonic() - start:.1f} s",
            flush=True,
        )
    turn = 0
    while chosen.full and time.monotonic() - begun < chosen.budget:
        turn += 1
        for job in jobs:
            if time.monotonic() - begun > chosen.budget:
                break
            more: list[Case | Named] = list(sampled_cases(job, chosen.ops, chosen.seed, turn))
            more += [
                Named(chosen.seed * 100_000 + turn * 10 + number, "program", f"200-{kind}", job)
                for number, kind in enumerate(("mixed", "async", "shuffled"))
            ]
            run_job(job, more, chosen.order, chosen.reads, tally)
        print(f"round {turn}: {tally.passed} passed, {tally.failed} failed so far", flush=True)
    return tally


def run_one_rank(chosen: argparse.Namespace) -> int:
    """As one rank of a job that something else has started."""
    os.environ.update(TORCHCOMM_RANK=str(chosen.rank), TORCHCOMM_SIZE=str(chosen.size))
    torch.set_num_threads(1)
    transport = os.environ.get("FERROCOMM_HOST_TRANSPORT", "auto")
    job = f"{chosen.size}/{transport}"
    if chosen.case:
        cases: list[Case | Named] = [factors.parse(text) for text in chosen.case]
    else:
        cases = [*pairwise_cases([job], chosen.ops, chosen.seed)]
        cases += named_cases(job, chosen.seed, chosen.programs, chosen.ops)
    store = session.open_store(chosen.store, chosen.rank, chosen.size)
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        with open(Path(name) / "report0", "w") as report:
            one_rank.serve(chosen.rank, chosen.size, store, cases, exact(job, chosen.order), report)
        tally = Tally()
        _account(Path(name), cases, "", tally)
    return closing(tally, chosen)


def closing(tally: Tally, chosen: argparse.Namespace) -> int:
    slowest = sorted(tally.seconds.items(), key=lambda item: -item[1])[: chosen.slowest]
    for case, seconds in slowest:
        print(f"{seconds:7.2f} s  {case}")
    print(f"conformance: {tally.passed} passed, {tally.failed} failed (seed {chosen.seed})")
    return 1 if tally.failed or not tally.passed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def words(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument(
        "--ranks", type=lambda text: [int(n) for n in text.split(",")], default=list(factors.RANKS)
    )
    parser.add_argument("--transport", type=words, default=list(factors.TRANSPORTS))
    parser.add_argument("--ops", type=words, default=list(factors.OPERATIONS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=3, help="random programs per job")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--budget", type=float, default=900.0, help="seconds of --full")
    parser.add_argument("--case", action="append", help="a case again; may be given several times")
    parser.add_argument(
        "--order",
        choices=("auto", "rank", "any"),
        default="auto",
        help="whether float reductions must be in rank order to the last bit",
    )
    parser.add_argument(
        "--reads",
        choices=("on", "off", "auto"),
        default="on",
        help="FERROCOMM_DIRECT_READS of all ranks",
    )
    parser.add_argument("--slowest", type=int, default=0, help="show so many slowest cases")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--store", help="tcp://HOST:PORT or file:PATH")
    chosen = parser.parse_args()
    for name in chosen.ops:
        if name not in factors.OPERATIONS:
            parser.error(f"no operation {name!r}; there are {', '.join(factors.OPERATIONS)}")
    alone = (chosen.rank is None, chosen.size is None, chosen.store is None)
    if any(alone) and not all(alone):
        parser.error("--rank, --size and --store go together")
    return chosen


def main() -> int:
    """Returns the exit code."""
    chosen = arguments()
    # Told to end, it ends what it started and removes its folders.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if chosen.rank is not None:
        return run_one_rank(chosen)
    print(f"seed {chosen.seed}, direct reads {chosen.reads}", flush=True)
    if not chosen.case:
        return closing(run_all(chosen), chosen)
    tally = Tally()
    cases = [factors.parse(text) for text in chosen.case]
    for job in dict.fromkeys(case.job for case in cases):
        run_job(job, [case for case in cases if case.job == job], chosen.order, chosen.reads, tally)
    return closing(tally, chosen)


if __name__ == "__main__":
    sys.exit(main())
