"""abort() and Ctrl-C: whoever waits is woken at once, and the process goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from board import Board, until_asleep
from cases import (
    FAR,
    Job,
    Outcome,
    Report,
    case,
    expect,
    expect_works,
    failure,
    joined,
    split,
)
from issuing import LARGE, OPERATIONS, SMALL, Arguments, make
from limits import waits
from ranks import Rank

import torchcomms

# Promised for abort, and where the tests fail; the same for Ctrl-C.
ABORT_PROMISED = 0.05
ABORT_LIMIT = 1.0
INTERRUPT_PROMISED = 0.3
INTERRUPT_LIMIT = 3.0
SLEEPERS = ("sync", "async", "three on one work")


class Sleeper:
    """A thread that waits for what never comes, and when and how it was woken."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait
        self.text = ""
        self.woken = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._wait()
        except RuntimeError as error:
            self.woken = time.monotonic()
            self.text = str(error)

    def until_asleep(self) -> None:
        assert self.thread.native_id is not None
        until_asleep(os.getpid(), self.thread.native_id)
        expect(self.thread.is_alive(), "a thread that waits", self.text or "it has ended")


def _sleepers(call, kind: str) -> list[Sleeper]:
    if kind == "sync":
        return [Sleeper(lambda: call.run(False))]
    works = call.issue(True)
    waiters = 3 if kind == "three on one work" else 1
    return [Sleeper(work.wait) for work in works for _ in range(waiters)]


def size_of(operation: str) -> int:
    return LARGE // 8 if operation in ("send", "batch") else SMALL


def woken(me: Rank, board: Board, size: int, missing: int) -> Report:
    """All but one rank wait in each operation, and abort it from another thread."""
    report: Report = {}
    base = joined(me, size)
    for name in OPERATIONS:
        for kind in SLEEPERS:
            comm = split(base, f"{name}-{kind}")
            # what one rank aborts ends the batches of the others
            alone = name == "batch" and me.rank != 0
            if me.rank != missing and waits(name, me.rank, size, missing) and not alone:
                with case(report, f"{name}, {kind}") as outcome:
                    _abort(outcome, comm, make(name, comm, Arguments(missing, size_of(name))), kind)
            comm.abort()
    with case(report, "afterwards"):
        expect_works(base)
        new = joined(me, size, "new")
        expect_works(new)
        new.finalize()
        base.finalize()
    return report


def _abort(outcome: Outcome, comm: torchcomms.TorchComm, call, kind: str) -> None:
    sleepers = _sleepers(call, kind)
    for sleeper in sleepers:
        sleeper.until_asleep()
    start = time.monotonic()
    comm.abort()
    returned = time.monotonic() - start
    for sleeper in sleepers:
        sleeper.thread.join(FAR / 2)
        expect(not sleeper.thread.is_alive(), "the waiter to be woken", "it still waits")
        expect(sleeper.text.startswith("aborted"), "'aborted'", sleeper.text)
    outcome.seconds = max([returned, *(sleeper.woken - start for sleeper in sleepers)])
    expect(outcome.seconds < ABORT_LIMIT, f"at most {ABORT_LIMIT:g} s", outcome.seconds)
    if outcome.seconds > ABORT_PROMISED:
        outcome.note = f"woke after {outcome.seconds * 1000:.0f} ms, 50 promised"
    comm.abort()
    expect(comm.is_aborted(), "is_aborted()", comm.state())
    later = failure(comm.barrier, "a later operation to fail")
    expect(later.startswith("aborted"), "'aborted'", later)
    comm.finalize()
    comm.abort()


def together(me: Rank, board: Board, size: int) -> Report:
    """Many threads abort one communicator at once, while many wait in it, 20 times."""
    report: Report = {}
    base = joined(me, size)
    with case(report, "eight threads abort what eight wait for") as outcome:
        outcome.seconds = 0.0
        for number in range(20):
            comm = split(base, f"split{number}")
            comm.barrier()
            import torch

            sleepers = [
                Sleeper(comm.recv(torch.zeros(4), (me.rank + 1) % size, async_op=True).wait)
                for _ in range(8)
            ]
            for sleeper in sleepers:
                sleeper.until_asleep()
            # the peers abort when they like: local, so it disturbs nobody here
            start = time.monotonic()
            killers = [threading.Thread(target=comm.abort) for _ in range(8)]
            for killer in killers:
                killer.start()
            for killer in killers:
                killer.join()
            for sleeper in sleepers:
                sleeper.thread.join(FAR / 2)
                expect(sleeper.text.startswith("aborted"), "'aborted'", sleeper.text)
                outcome.seconds = max(outcome.seconds, sleeper.woken - start)
            base.barrier()
        expect(outcome.seconds < ABORT_LIMIT, f"at most {ABORT_LIMIT:g} s", outcome.seconds)
    with case(report, "afterwards"):
        expect_works(base)
    return report


def split_children(me: Rank, board: Board, size: int) -> Report:
    """Each communicator is its own: aborting the one it was split from leaves the child alone."""
    report: Report = {}
    base = joined(me, size)
    child = split(base, "child")
    base.abort()
    board.meet(1, me.rank, size)
    with case(report, "the child of an aborted communicator still works or says why"):
        try:
            expect_works(child)
        except RuntimeError as error:
            expect("abort" in str(error), "'aborted'", error)
    return report


def interrupted(me: Rank, board: Board, size: int, missing: int) -> Report:
    """Ctrl-C in every operation, synchronous and in wait()."""
    report: Report = {}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    base = joined(me, size)
    for name in OPERATIONS:
        for kind in ("sync", "wait"):
            comm = split(base, f"{name}-{kind}")
            if me.rank != missing and waits(name, me.rank, size, missing):
                with case(report, f"{name}, {kind}") as outcome:
                    call = make(name, comm, Arguments(missing, size_of(name)))
                    _interrupt(outcome, lambda call=call, kind=kind: call.run(kind == "wait"))
                    expect(
                        comm.state() in ("ready", "aborted"), "'ready' or 'aborted'", comm.state()
                    )
            comm.abort()
    with case(report, "afterwards"):
        expect_works(base)
        base.finalize()
    return report


def _interrupt(outcome: Outcome, wait: Callable[[], object]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    sent: list[float] = []

    def press() -> None:
        until_asleep(os.getpid())
        sent.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=press)
    started = False
    try:
        try:
            presser.start()
            started = True
            wait()
        finally:
            woken = time.monotonic()
            if started:
                presser.join()
    except KeyboardInterrupt:
        pass
    else:
        expect(False, "KeyboardInterrupt", "no exception")
    outcome.seconds = woken - sent[0]
    expect(outcome.seconds < INTERRUPT_LIMIT, f"at most {INTERRUPT_LIMIT:g} s", outcome.seconds)
    if outcome.seconds > INTERRUPT_PROMISED:
        outcome.note = f"raised after {outcome.seconds * 1000:.0f} ms"


def jobs(transports: list[str], sizes: list[int], _full: bool) -> list[Job]:
    found = []
    for transport in transports:
        for size in sizes:
            missing = size - 1
            arguments = (size, missing)
            title = f"abort: while all but rank {missing} wait,"
            found.append(Job(title, woken, size, transport, arguments))
            found.append(Job("abort: by many threads,", together, size, transport, (size,)))
            found.append(Job("abort: of a parent,", split_children, size, transport, (size,)))
        found.append(Job("ctrl-c: in every operation,", interrupted, 2, transport, (2, 1)))
    return found
