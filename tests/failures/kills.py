"""A peer is killed: every waiter names it, soon, wherever the kill strikes."""

from __future__ import annotations

import os
import random
import signal
import time

from board import Board, until_asleep, until_dead
from cases import (
    FAR,
    PROMISED,
    WATCHDOG,
    Fault,
    Job,
    Outcome,
    Report,
    case,
    expect,
    expect_failed,
    expect_kind,
    failure,
    joined,
    since,
    split,
)
from issuing import LARGE, OPERATIONS, SMALL, Arguments, make
from ranks import Rank

import torchcomms

# Victims in turn: any rank may be the dead one, the lowest no more often than others.
VICTIMS = {2: (1, 0), 4: (2, 1, 3, 0)}


def strike(board: Board, victim: int, number: signal.Signals) -> None:
    board.set("struck", victim, time.monotonic())
    os.kill(int(board.get("pid", victim)), number)


def _strike_sleepers(board: Board, size: int, victim: int) -> None:
    """Kills when all others sleep in their operation."""
    others = [rank for rank in range(size) if rank != victim]
    board.wait_for("here", list(range(size)), 1)
    board.wait_for("rounds", others, 1)
    for rank in others:
        until_asleep(int(board.get("pid", rank)))
    strike(board, victim, signal.SIGKILL)


def _strike_workers(board: Board, size: int, victim: int, seed: int) -> None:
    """Kills at a random moment while all are busy with one call after the other."""
    board.wait_for("here", list(range(size)), 1)
    board.wait_for("rounds", list(range(size)), 2)
    time.sleep(random.Random(seed).uniform(0, 0.01))
    strike(board, victim, signal.SIGKILL)


def named_in_time(outcome: Outcome, text: str, board: Board, victim: int, start: float) -> None:
    """`start`: from when on the rank needed the dead one."""
    outcome.seconds = since(max(start, board.get("struck", victim)))
    expect_kind(text, "peer lost", {victim})
    expect(outcome.seconds < WATCHDOG, f"at most {WATCHDOG:g} s", f"{outcome.seconds:.1f} s")
    if outcome.seconds > PROMISED:
        outcome.note = f"took {outcome.seconds:.1f} s, {PROMISED:g} promised"


def asleep(
    me: Rank, board: Board, size: int, victim: int, operation: str, count: int, a: bool
) -> Report:
    """The victim never calls; the others sleep in the call, or in the next if it needs nobody."""
    if me.rank == size:
        _strike_sleepers(board, size, victim)
        return {}
    report: Report = {}
    comm = joined(me, size)
    arguments = Arguments(victim, count)
    call = make(operation, comm, arguments)
    comm.barrier()
    board.arrive(me.rank)
    if me.rank == victim:
        signal.pause()
    with case(report, f"{operation}") as outcome:
        board.set("rounds", me.rank, 1)

        def wait() -> None:
            call.run(a)
            comm.barrier()

        text = failure(wait, f"the dead rank {victim} to be named")
        named_in_time(outcome, text, board, victim, 0)
        expect_failed(comm, text)
    return report


def busy(
    me: Rank, board: Board, size: int, victim: int, operation: str, count: int, a: bool
) -> Report:
    """All call again and again when the victim dies."""
    if me.rank == size:
        _strike_workers(board, size, victim, OPERATIONS.index(operation))
        return {}
    report: Report = {}
    comm = joined(me, size)
    call = make(operation, comm, Arguments(victim, count))
    board.arrive(me.rank)
    with case(report, f"{operation}") as outcome:
        text = _work_until_error(board, me.rank, victim, call.run, a)
        named_in_time(outcome, text, board, victim, 0)
        expect_failed(comm, text)
    return report


def _work_until_error(board: Board, rank: int, victim: int, run, a: bool) -> str:
    rounds = 0
    while True:
        try:
            run(a)
        except RuntimeError as error:
            return str(error)
        rounds += 1
        board.set("rounds", rank, rounds)
        struck = board.get("struck", victim)
        if struck and since(struck) > WATCHDOG:
            raise Fault(f"went on for {WATCHDOG:g} s without the dead rank {victim}")


def dead_already(me: Rank, board: Board, size: int, victim: int, first: int) -> Report:
    """The victim is dead when the call is made: on a new communicator, and on a used one."""
    if me.rank == size:
        board.wait_for("here", list(range(size)), 1)
        for rank in range(size):
            until_asleep(int(board.get("pid", rank)))
        strike(board, victim, signal.SIGKILL)
        return {}
    report: Report = {}
    base = joined(me, size)
    order = OPERATIONS[first:] + OPERATIONS[:first]
    modes = [(name, used, a) for name in order for used, a in ((False, False), (True, True))]
    comms: list[torchcomms.TorchComm] = []
    calls = []
    for name, used, a in modes:
        comms.append(split(base, f"{name}-{used}"))
        calls.append(make(name, comms[-1], Arguments(victim, SMALL)))
        if used:
            calls[-1].run(a)
    base.barrier()
    board.arrive(me.rank)
    if me.rank == victim:
        signal.pause()
    board.wait_for("struck", [victim], 1e-9)
    until_dead(int(board.get("pid", victim)))
    for (name, used, a), comm, call in zip(modes, comms, calls, strict=True):
        with case(report, f"{name} {'after others' if used else 'as the first'}") as outcome:
            start = time.monotonic()

            def wait(call=call, comm=comm, a=a) -> None:
                call.run(a)
                comm.barrier()

            text = failure(wait, f"the dead rank {victim} to be named")
            named_in_time(outcome, text, board, victim, start)
            expect_failed(comm, text)
    return report


def every_waiter(me: Rank, board: Board, size: int, victim: int) -> Report:
    """A thread per operation sleeps, each in a communicator of its own: one death wakes all."""
    import threading

    if me.rank == size:
        board.wait_for("here", list(range(size)), 1)
        board.wait_for("rounds", [r for r in range(size) if r != victim], 1)
        strike(board, victim, signal.SIGKILL)
        return {}
    report: Report = {}
    base = joined(me, size)
    comms = {name: split(base, name) for name in OPERATIONS}
    calls = {name: make(name, comms[name], Arguments(victim)) for name in OPERATIONS}
    base.barrier()
    board.arrive(me.rank)
    if me.rank == victim:
        signal.pause()

    def wait(name: str) -> None:
        with case(report, name) as outcome:

            def both() -> None:
                calls[name].run(False)
                comms[name].barrier()

            text = failure(both, f"the dead rank {victim} to be named")
            named_in_time(outcome, text, board, victim, 0)
            expect_failed(comms[name], text)

    threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in OPERATIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        assert thread.native_id is not None
        until_asleep(os.getpid(), thread.native_id)
    board.set("rounds", me.rank, 1)
    for thread in threads:
        thread.join(FAR)
    for name, thread in zip(OPERATIONS, threads, strict=True):
        if thread.is_alive():
            report[name] = Outcome(f"expected an error\n      got no end within {FAR:g} s")
    return report


KINDS = (
    ("asleep, small, sync", asleep, SMALL, False),
    ("asleep, 32 MB, async", asleep, LARGE, True),
    ("busy, small, async", busy, SMALL, True),
    ("busy, 32 MB, sync", busy, LARGE, False),
)


def jobs(transports: list[str], sizes: list[int], full: bool) -> list[Job]:
    found = []
    for transport in transports:
        for size in sizes:
            turn = VICTIMS[size]

            def add(name, body, victim, *rest, transport=transport, size=size) -> None:
                arguments = (size, victim, *rest)
                title = f"kill: {name}, rank {victim} of"
                found.append(Job(title, body, size, transport, arguments, (victim,), extra=1))

            for number, operation in enumerate(OPERATIONS):
                for kind, (name, body, count, a) in enumerate(KINDS):
                    # a barrier has no size, and a small message is sent at once
                    alike = operation == "barrier" and count == LARGE
                    alike = alike or (operation == "send" and body is asleep and count == SMALL)
                    # of many ranks each operation meets half of the kinds, unless all are wanted
                    drawn = full or size == 2 or kind in ((0, 3), (1, 2))[number % 2]
                    if drawn and not alike:
                        victim = turn[(number + kind) % len(turn)]
                        add(name, body, victim, operation, count, a)
            for number, victim in enumerate(turn):
                add("dead already", dead_already, victim, number * 5)
            add("one thread per operation", every_waiter, turn[0])
    return found
