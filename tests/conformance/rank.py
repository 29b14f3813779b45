"""What one rank does: case after case, each under a watchdog, each compared with the other ranks.

A case passes when every rank says so and what must be alike is alike. What a case came to is
written at once, one line of JSON each, so that it survives the end of the process.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

import corners
import modes
import programs
from elements import Difference
from factors import Case, Named
from session import Session
from torch._C._distributed_c10d import Store

# A rank that is stuck for so long says where, and ends; longer than any limit of an operation.
WATCHDOG = 140.0
# A job gives up after so many: each may cost the time-out of an operation.
FAILURES = 12


def serve(
    rank: int,
    size: int,
    store: Store,
    cases: Sequence[Case | Named],
    exact: bool,
    report: TextIO,
) -> int:
    """Runs the cases; the number of those that failed."""
    faulthandler.enable(file=sys.stderr, all_threads=True)
    _watch()
    session = Session(rank, size, store, exact)
    failures = 0
    for case in cases:
        _watch()
        _say(report, {"case": str(case), "verdict": "started"})
        begun = time.monotonic()
        text, digests = _attempt(case, session)
        told = session.tell({"text": text, "digests": digests})
        faults = _faults(told)
        failures += bool(faults)
        _say(
            report,
            {
                "case": str(case),
                "verdict": "failed" if faults else "passed",
                "text": "\n".join(faults),
                "seconds": time.monotonic() - begun,
            },
        )
        if failures == FAILURES:
            break
        if faults:
            session.reopen()
    if failures < FAILURES:
        session.close()
    session.tell("done")
    faulthandler.cancel_dump_traceback_later()
    return failures


def _watch() -> None:
    faulthandler.dump_traceback_later(WATCHDOG, exit=True, file=sys.stderr)


def _say(report: TextIO, line: dict[str, Any]) -> None:
    report.write(json.dumps(line) + "\n")
    report.flush()


def _attempt(case: Case | Named, session: Session) -> tuple[str, modes.Digests]:
    try:
        if isinstance(case, Case):
            return "", modes.run(case, session)
        if case.kind == "program":
            return "", programs.run(case.seed, case.name, session)
        return "", corners.CORNERS[case.name](session, case.seed)
    except Difference as error:
        return str(error), {}
    except Exception:
        return traceback.format_exc(), {}


def _faults(told: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong, rank by rank; a difference between ranks when all is well on each."""
    faults = [f"rank {rank}: {each['text']}" for rank, each in enumerate(told) if each["text"]]
    if faults:
        return faults
    seen: dict[str, tuple[int, int]] = {}
    for rank, each in enumerate(told):
        for name, digest in each["digests"].items():
            first, value = seen.setdefault(name, (rank, digest))
            if value != digest:
                faults.append(
                    f"{name}: rank {rank} has other bits than rank {first} "
                    f"(digest {digest:08x}, expected {value:08x})"
                )
    return faults
