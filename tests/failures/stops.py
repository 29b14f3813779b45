"""A peer that is stopped is a peer that is late: the ordinary time-out, and no harm afterwards."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

from board import PATIENCE, Board, until
from cases import (
    WATCHDOG,
    Fault,
    Job,
    Report,
    case,
    expect,
    expect_failed,
    expect_works,
    failure,
    joined,
    peers,
    since,
    split,
)
from issuing import LARGE, OPERATIONS, POINTS, SMALL, Arguments, make
from kills import strike
from ranks import Rank

import torchcomms

SHORT = timedelta(seconds=0.4)
MIDDLE = 256 << 10  # elements: 1 MB
IN_TRANSFER = ("all_reduce", "broadcast", "all_to_all_single", "gather", "recv", "send")
# The stages at which all ranks of a job meet, and those that the striker alone waits for.
_OVER = 1


def _stop(board: Board, victim: int, others: list[int]) -> None:
    """Stops the victim until the others say that they are done."""
    strike(board, victim, signal.SIGSTOP)
    try:
        board.wait_for("rounds", others, 1e9)
    finally:
        os.kill(int(board.get("pid", victim)), signal.SIGCONT)
        board.set("struck", victim, 0)


def named_late(text: str, victim: int) -> None:
    expect(text.startswith("time-out"), "'time-out'", text)
    expect(victim in peers(text), f"rank {victim} named as missing", text)


def silent(me: Rank, board: Board, size: int, victim: int) -> Report:
    """The victim is stopped before it calls; every operation times out, then it goes on."""
    others = [rank for rank in range(size) if rank != victim]
    if me.rank == size:
        board.wait_for("here", list(range(size)), 1)
        _stop(board, victim, others)
        return {}
    report: Report = {}
    base = joined(me, size)
    sizes = (SMALL, MIDDLE)
    comms = {(n, c): split(base, f"{n}-{c}") for n in OPERATIONS for c in sizes}
    calls = {
        key: make(key[0], comm, Arguments(victim, key[1], timeout=SHORT))
        for key, comm in comms.items()
    }
    base.barrier()
    board.arrive(me.rank)
    if me.rank == victim:
        board.wait_for("rounds", others, 1e9)
        _late_calls(report, calls)
    else:
        board.wait_for("struck", [victim], 1e-9)
        start = time.monotonic()
        works = {key: _issued(call) for key, call in calls.items()}
        for key, (pending, text) in works.items():
            with case(report, f"{key[0]}, {key[1]} elements") as outcome:
                text = text or _waited(pending, comms[key])
                named_late(text, victim)
                outcome.seconds = max(0.0, since(start) - SHORT.total_seconds())
                expect(outcome.seconds < WATCHDOG, f"at most {WATCHDOG:g} s late", outcome.seconds)
                if key[0] not in POINTS:
                    expect_failed(comms[key], text)
        board.set("rounds", me.rank, 1e9)
    with case(report, "afterwards"):
        board.meet(_OVER, me.rank, size)
        for comm in comms.values():
            comm.abort()
        expect_works(base)
        new = joined(me, size, "new")
        expect_works(new)
        new.finalize()
        base.finalize()
    return report


def _issued(call) -> tuple[list[torchcomms.TorchWork], str]:
    try:
        return call.issue(True), ""
    except RuntimeError as error:
        return [], str(error)


def _waited(works: list[torchcomms.TorchWork], comm: torchcomms.TorchComm) -> str:
    def wait() -> None:
        for work in works:
            work.wait()
        comm.barrier(timeout=SHORT)

    return failure(wait, "a time-out")


def _late_calls(report: Report, calls) -> None:
    """What the continued rank calls now ends, one way or the other."""
    for key, call in calls.items():
        with case(report, f"{key[0]}, {key[1]} elements"):
            start = time.monotonic()
            try:
                call.run(False)
            except RuntimeError as error:
                expect("time-out" in str(error), "a time-out", error)
            expect(since(start) < WATCHDOG, f"an end within {WATCHDOG:g} s", since(start))


def in_transfer(me: Rank, board: Board, size: int, victim: int) -> Report:
    """The victim is stopped in the middle of large transfers; one operation after the other."""
    others = [rank for rank in range(size) if rank != victim]
    everyone = list(range(size))
    if me.rank == size:
        for number in range(len(IN_TRANSFER)):
            board.wait_for("stage", everyone, 2 * number + 1)
            board.wait_for("rounds", everyone, 1)
            _stop(board, victim, others)
        return {}
    report: Report = {}
    base = joined(me, size)
    for number, operation in enumerate(IN_TRANSFER):
        with case(report, operation) as outcome:
            comm = split(base, operation)
            call = make(operation, comm, Arguments(victim, LARGE // 4, timeout=SHORT))
            board.set("rounds", me.rank, 0)
            board.arrive(me.rank)
            board.meet(2 * number + 1, me.rank, size)
            text = _until_late(board, me.rank, victim, call)
            if me.rank != victim:
                outcome.seconds = max(
                    0.0, since(board.get("struck", victim)) - SHORT.total_seconds()
                )
                named_late(text, victim)
                extra = sorted(set(peers(text)) - {victim})
                if extra:
                    outcome.note = f"also named: {extra}"
        board.set("rounds", me.rank, 1e9)
        until(lambda: board.get("struck", victim) == 0, "the victim to go on")
        board.meet(2 * number + 2, me.rank, size)
        comm.abort()
    with case(report, "afterwards"):
        expect_works(base)
    return report


def _until_late(board: Board, rank: int, victim: int, call) -> str:
    rounds = 0
    start = time.monotonic()
    while since(start) < PATIENCE:
        try:
            call.run(rounds % 2 == 0)
        except RuntimeError as error:
            return str(error)
        rounds += 1
        board.set("rounds", rank, rounds)
    raise Fault("expected a time-out\n      got none")


def paused(me: Rank, board: Board, size: int, victim: int) -> Report:
    """Stopped and continued within the limit: nobody notices."""
    if me.rank == size:
        board.wait_for("here", list(range(size)), 1)
        strike(board, victim, signal.SIGSTOP)
        others = [rank for rank in range(size) if rank != victim]
        board.wait_for("rounds", others, 1)
        os.kill(int(board.get("pid", victim)), signal.SIGCONT)
        return {}
    report: Report = {}
    base = joined(me, size)
    calls = {n: make(n, split(base, n), Arguments(victim, MIDDLE)) for n in OPERATIONS}
    base.barrier()
    board.arrive(me.rank)
    board.wait_for("struck", [victim], 1e-9)
    works = {name: call.issue(True) for name, call in calls.items()}
    board.set("rounds", me.rank, 1)
    for name, pending in works.items():
        with case(report, name):
            for work in pending:
                work.wait()
    with case(report, "afterwards"):
        expect_works(base)
    return report


def jobs(transports: list[str], sizes: list[int], _full: bool) -> list[Job]:
    found = []
    for transport in transports:
        for size in sizes:
            victim = {2: 0, 4: 2}[size]
            for name, body in (
                ("before it calls", silent),
                ("in a transfer", in_transfer),
                ("for a moment", paused),
            ):
                title = f"stop: {name}, rank {victim} of"
                found.append(Job(title, body, size, transport, (size, victim), extra=1))
    return found
