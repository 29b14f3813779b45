"""Numbers that all processes of a job see, and what the kernel says of a process or thread.

A job makes its board before its ranks are forked. The engine has no part in it.
"""

from __future__ import annotations

import mmap
import os
import selectors
import struct
import time
from collections.abc import Callable
from pathlib import Path

RANKS = 16
FIELDS = ("pid", "here", "rounds", "stage", "struck")
# Guards against a hang of the test itself; every limit of the engine is shorter.
PATIENCE = 40.0
_STEP = 0.001


class Board:
    """One number per field and rank. A rank writes its own; whoever likes reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, RANKS * len(FIELDS) * 8)

    def _at(self, field: str, rank: int) -> int:
        return (FIELDS.index(field) * RANKS + rank) * 8

    def get(self, field: str, rank: int) -> float:
        value: float = struct.unpack_from("d", self._memory, self._at(field, rank))[0]
        return value

    def set(self, field: str, rank: int, value: float) -> None:
        struct.pack_into("d", self._memory, self._at(field, rank), value)

    def arrive(self, rank: int) -> None:
        self.set("pid", rank, os.getpid())
        self.set("here", rank, 1)

    def wait_for(self, field: str, ranks: list[int], least: float) -> None:
        """Returns when the field is at least this for all of these ranks."""
        until(lambda: all(self.get(field, rank) >= least for rank in ranks), f"{field} of {ranks}")

    def meet(self, stage: int, rank: int, size: int) -> None:
        """Returns when every rank has come to this stage; stages only grow."""
        self.set("stage", rank, stage)
        self.wait_for("stage", list(range(size)), stage)


def until(condition: Callable[[], bool], what: str) -> None:
    """Looks until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"the test waited {PATIENCE:g} s in vain for {what}")
        time.sleep(_STEP)


def sleeps(pid: int, thread: int | None = None) -> bool:
    """Whether a thread (the main one) sleeps in the kernel."""
    path = Path(f"/proc/{pid}/task/{thread or pid}/stat")
    return path.read_text().rsplit(")", 1)[1].split()[0] == "S"


def until_asleep(pid: int, thread: int | None = None) -> None:
    """Returns when the thread was seen asleep several times in a row: it waits, it does not run."""
    seen = 0

    def often() -> bool:
        nonlocal seen
        seen = seen + 1 if sleeps(pid, thread) else 0
        return seen >= 5

    until(often, f"process {pid} to sleep")


def until_dead(pid: int) -> None:
    """Returns when the process has ended; at once when it is gone already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"process {pid} lives"
    finally:
        os.close(handle)
