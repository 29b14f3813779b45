"""All jobs of the suite."""

from __future__ import annotations

import kills
from cases import Job


def jobs(transports: list[str], sizes: list[int]) -> list[Job]:
    found: list[Job] = []
    for module in (kills,):
        found += module.jobs(transports, sizes)
    return found
