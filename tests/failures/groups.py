"""All jobs of the suite.

Where tests/python has single cases of the same kind they are named, and not repeated here.

kills       a killed peer: every operation, small and 32 MB, while all sleep, while all are busy,
            dead already. test_failing: receiving from any rank goes on without the dead
stops       a stopped peer
limits      whose limit counts, what a time-out says and leaves. test_failing: a rank that never
            joins; test_point_to_point
mismatches  calls that differ. test_failing: a root that had finished
aborts      abort and Ctrl-C in every operation. test_failing: while joining, and through c10d
processes   fork in flight, exit, shortage, leaks, idle. test_fork: between operations;
            test_groups: many groups. The budget itself: unit tests of rust/host/src/budget.rs
"""

from __future__ import annotations

import aborts
import kills
import limits
import mismatches
import processes
import stops
from cases import Job


def jobs(transports: list[str], sizes: list[int], full: bool) -> list[Job]:
    found: list[Job] = []
    for module in (kills, stops, limits, mismatches, aborts, processes):
        found += module.jobs(transports, sizes, full)
    return found
