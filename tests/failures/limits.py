"""Time-outs: whose limit counts, what the error says, and what is left afterwards."""

from __future__ import annotations

import time
from datetime import timedelta

from board import Board
from cases import (
    FAR,
    WATCHDOG,
    Job,
    Outcome,
    Report,
    case,
    expect,
    expect_failed,
    expect_kind,
    expect_works,
    failure,
    joined,
    peers,
    split,
)
from issuing import LARGE, OPERATIONS, POINTS, SMALL, Arguments, make
from ranks import Rank

import torchcomms

OWN = timedelta(seconds=0.2)
# Beyond every stage at which only some ranks meet.
LAST = 1000
# How operations are called in errors where that is not the method's name.
NAMES = {
    "all_gather_v": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "gather_single": "gather",
    "batch": "batch",
}


def waits(operation: str, rank: int, size: int, missing: int) -> bool:
    """Whether this rank cannot end without the missing one."""
    if operation in ("reduce", "gather", "gather_single"):
        return rank == (missing + 1) % size
    return True


def size_of(operation: str) -> int:
    return LARGE // 8 if operation in ("send", "batch") else SMALL


def expect_time_out(
    outcome: Outcome, text: str, operation: str, limit: float, missing: int, seconds: float
) -> None:
    expect_kind(text, "time-out", {missing})
    expect(f"the timeout of {limit:.3f} s" in text, f"the limit {limit:.3f} s", text)
    name = NAMES.get(operation, operation)
    expect(f"operation {name}" in text, f"the operation {name}", text)
    outcome.seconds = max(0.0, seconds - limit)
    expect(outcome.seconds < WATCHDOG, f"at most {WATCHDOG:g} s late", outcome.seconds)


def missing_one(me: Rank, board: Board, size: int, missing: int) -> Report:
    """Per operation: the own limit beats the communicator's; what the error says; what is left."""
    report: Report = {}
    base = joined(me, size)
    modes = [(n, a) for n in OPERATIONS for a in (False, True)]
    comms = {key: split(base, f"{key[0]}-{key[1]}") for key in modes}
    others = [rank for rank in range(size) if rank != missing]
    if me.rank != missing:
        _called(report, board, me.rank, others, comms, missing)
    board.meet(LAST, me.rank, size)
    for key in modes:
        name, asynchronous = key
        with case(report, f"{name} {'async' if asynchronous else 'sync'} afterwards"):
            if name in POINTS:
                # the message that a send had begun was taken back with it
                expect_works(comms[key])
                comms[key].finalize()
            else:
                comms[key].abort()
    with case(report, "the communicator they came from"):
        expect_works(base)
        base.finalize()
    return report


def _called(
    report: Report,
    board: Board,
    rank: int,
    others: list[int],
    comms: dict[tuple[str, bool], torchcomms.TorchComm],
    missing: int,
) -> None:
    """All that came call at once; the async ones all together, the sync ones one by one."""
    _meet(board, rank, others, 1)
    issued = {key: Issued(key, comm, missing) for key, comm in comms.items() if key[1]}
    for stage, key in enumerate(sorted(comms, key=lambda key: not key[1]), start=2):
        if not key[1]:
            _meet(board, rank, others, stage)
            issued[key] = Issued(key, comms[key], missing)
        with case(report, f"{key[0]} {'async' if key[1] else 'sync'}") as outcome:
            if waits(key[0], rank, len(others) + 1, missing):
                _one(outcome, issued[key], missing)
            else:
                # it may end before the others find out, or be told by them
                _ended_or_told(issued[key])


def _meet(board: Board, rank: int, others: list[int], stage: int) -> None:
    board.set("stage", rank, stage)
    board.wait_for("stage", others, stage)


def _ended_or_told(issued: Issued) -> None:
    try:
        issued.wait()
    except RuntimeError as error:
        expect(str(error).startswith("time-out"), "'time-out' if any", error)


class Issued:
    """A call that will time out: made at once when it is async, else in `wait`."""

    def __init__(self, key: tuple[str, bool], comm: torchcomms.TorchComm, missing: int) -> None:
        self.name, self.asynchronous = key
        self.comm = comm
        self._call = make(self.name, comm, Arguments(missing, size_of(self.name), timeout=OWN))
        self.start = time.monotonic()
        self._works = self._call.issue(True) if self.asynchronous else []
        self.sequence = [work.sequence() for work in self._works]

    def wait(self) -> None:
        if not self.asynchronous:
            self._call.run(False)
        for work in self._works:
            work.wait()


def _one(outcome: Outcome, issued: Issued, missing: int) -> None:
    text = failure(issued.wait, "a time-out")
    seconds = time.monotonic() - issued.start
    comm, name = issued.comm, issued.name
    if name == "batch" and comm.get_size() > 2:
        # others of the batch may be late because of the missing one
        expect(missing in peers(text), f"rank {missing} named", text)
    else:
        expect_time_out(outcome, text, name, OWN.total_seconds(), missing, seconds)
    if issued.asynchronous:
        outcome.seconds = None  # others were waited for in between
    for number in issued.sequence:
        expect(f"sequence {number}" in text, f"the sequence number {number}", text)
    if name in POINTS:
        expect(comm.state() == "ready", "the state 'ready'", comm.state())
    else:
        expect_failed(comm, text)


def whose_limit(me: Rank, board: Board, size: int, missing: int) -> Report:
    """TORCHCOMM_TIMEOUT_SECONDS, beaten by the communicator's, by set_timeout, by wait(t)."""
    import torch

    report: Report = {}
    joined(me, size, "first").finalize()
    made = {
        "the default": (torchcomms.new_comm, None, 0.9),
        "the communicator's": (torchcomms.new_comm, timedelta(seconds=0.3), 0.3),
    }
    found: dict[str, tuple[torchcomms.TorchComm, float]] = {}
    for name, (new, limit, seconds) in made.items():
        here = Rank(me.rank, size, me.folder)
        store = here.store(name.replace(" ", "-").replace("'", ""))
        comm = new("gloo", "cpu", name=name.split()[-1], store=store, timeout=limit)
        found[name] = (comm, seconds)
        child = split(comm, f"child of {name}")
        found[f"{name}, inherited by a split"] = (child, seconds)
    later = split(found["the default"][0], "set")
    later.set_timeout(timedelta(seconds=0.4))
    found["set_timeout"] = (later, 0.4)
    waited = split(found["the default"][0], "waited")
    points = split(found["the default"][0], "points")
    board.meet(1, me.rank, size)
    if me.rank == missing:
        board.meet(LAST, me.rank, size)
        expect_works(points)
        return report
    others = [rank for rank in range(size) if rank != missing]
    for stage, (name, (comm, seconds)) in enumerate(reversed(found.items()), start=2):
        # together, so that none of those that came can be taken for missing
        _meet(board, me.rank, others, stage)
        with case(report, name) as outcome:
            start = time.monotonic()
            text = failure(
                lambda comm=comm: comm.all_gather_single(torch.zeros(size), torch.zeros(1)),
                "a time-out",
            )
            expect_time_out(
                outcome, text, "all_gather_single", seconds, missing, time.monotonic() - start
            )
            expect_failed(comm, text)
    _meet(board, me.rank, others, LAST - 1)
    with case(report, "wait(t)") as outcome:
        work = waited.broadcast(
            torch.zeros(1), missing, async_op=True, timeout=timedelta(seconds=20)
        )
        start = time.monotonic()
        text = failure(lambda: work.wait(timedelta(seconds=0.15)), "a time-out")
        expect_time_out(outcome, text, "broadcast", 0.15, missing, time.monotonic() - start)
        again = failure(work.wait, "the same failure again")
        expect(again == text, text, again)
        expect_failed(waited, text)
    with case(report, "a receive beside others"):
        works = [
            points.recv(torch.zeros(1), missing, async_op=True, timeout=timedelta(seconds=limit))
            for limit in (0.1, 20)
        ]
        text = failure(works[0].wait, "a time-out")
        expect("the timeout of 0.100 s" in text, "the limit 0.100 s", text)
        expect(not works[1].is_completed(), "the other receive to be pending", works[1].status)
        works[1].cancel()
        failure(works[1].wait, "the cancelled receive to fail")
    board.meet(LAST, me.rank, size)
    with case(report, "after a receive that timed out"):
        expect_works(points)
    return report


def behind(me: Rank, board: Board, size: int, missing: int) -> Report:
    """The root waits for the missing rank; others, at the next collective, know who is late."""
    import torch

    report: Report = {}
    base = joined(me, size)
    comm = split(base, "behind")
    root = size - 1
    parts = [torch.zeros(4) for _ in range(size)] if me.rank == root else []

    def gathers() -> None:
        # The bytes leave at once, unless a rank takes those of its machine together.
        comm.gather(parts, torch.ones(4), root, timeout=timedelta(seconds=FAR))
        comm.gather([], torch.ones(1 << 20), root, timeout=timedelta(seconds=1))

    board.meet(1, me.rank, size)
    if me.rank != missing:
        with case(report, "gather behind gather"):
            text = failure(gathers, "a time-out")
            expect(missing in peers(text), f"rank {missing} named", text)
    board.meet(2, me.rank, size)
    comm.abort()
    with case(report, "the communicator they came from"):
        expect_works(base)
    return report


def innocent(me: Rank, board: Board, size: int, missing: tuple[int, ...]) -> Report:
    """Several ranks are missing: none is named that came, and at least one that did not."""
    report: Report = {}
    base = joined(me, size)
    comms = {name: split(base, name) for name in OPERATIONS if name not in POINTS}
    if me.rank not in missing:
        works = {}
        for name, comm in comms.items():
            call = make(name, comm, Arguments(missing[0], SMALL, timeout=timedelta(seconds=0.5)))
            works[name] = call.issue(True)
        for name, pending in works.items():
            with case(report, name) as outcome:
                if not waits(name, me.rank, size, missing[0]):
                    continue
                text = failure(lambda p=pending: [work.wait() for work in p], "a time-out")
                named = set(peers(text))
                expect(bool(named), "missing ranks", text)
                expect(named <= set(missing), f"no rank but of {missing} named", text)
                if named != set(missing) and name in ("barrier", "all_reduce", "all_gather"):
                    outcome.note = f"of {missing} only {sorted(named)} named"
    board.meet(1, me.rank, size)
    for comm in comms.values():
        comm.abort()
    with case(report, "the communicator they came from"):
        expect_works(base)
    return report


def jobs(transports: list[str], sizes: list[int], _full: bool) -> list[Job]:
    found = []
    for transport in transports:
        for size in sizes:
            missing = {2: 1, 4: 2}[size]
            title = f"time-out: one missing, rank {missing} of"
            found.append(Job(title, missing_one, size, transport, (size, missing)))
            found.append(
                Job(
                    "time-out: whose limit,",
                    whose_limit,
                    size,
                    transport,
                    (size, missing),
                    env={"TORCHCOMM_TIMEOUT_SECONDS": "0.9"},
                )
            )
            if size == 4:
                found.append(
                    Job("time-out: two missing,", innocent, size, transport, (size, (1, 3)))
                )
            if size == 4 and transport != "shm":
                # In shared memory all are at one collective.
                found.append(
                    Job("time-out: behind another,", behind, size, transport, (size, missing))
                )
    return found
