"""Ranks that call different things: all are told both calls, at once or with their next one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from board import Board
from cases import (
    Job,
    Outcome,
    Report,
    case,
    expect,
    expect_failed,
    expect_works,
    joined,
    since,
    split,
)
from issuing import COLLECTIVES, LARGE, SMALL, Arguments, make
from limits import NAMES
from ranks import Rank

import torchcomms

ROOTED = ("broadcast", "reduce", "scatter", "gather", "gather_single")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "reduce_scatter_single")
# Parts of these may differ in length: a size is between two ranks, and no rank knows all.
UNEVEN = ("all_gather_v", "reduce_scatter_v", "all_to_all", "all_to_all_v_single")
MIDDLE = LARGE // 16
# Of each operation: a mismatch that only shows as a time-out is a fault.
LIMIT = 4.0
MIN = torchcomms.ReduceOp.MIN


@dataclass(frozen=True)
class Difference:
    """What most ranks call, what one calls, and words that the error owes of each."""

    name: str
    usual: tuple[str, Arguments]
    other: tuple[str, Arguments]
    words: tuple[str, str]


def differences(count: int, size: int) -> list[Difference]:
    """Every kind of difference for every operation that can differ so."""
    base = Arguments(0, count)
    found = []
    for number, name in enumerate(COLLECTIVES):
        said = NAMES.get(name, name)
        other = COLLECTIVES[(number + 5) % len(COLLECTIVES)]
        if NAMES.get(other, other) == said:
            other = "barrier"
        found.append(
            Difference(
                f"{name} against {other}",
                (name, base),
                (other, base),
                (said, NAMES.get(other, other)),
            )
        )

        def differ(what: str, words: tuple[str, str], name=name, **changed) -> None:
            other = (name, replace(base, **changed))
            found.append(Difference(f"{what} of {name}", (name, base), other, words))

        if name == "barrier":
            continue
        differ("dtype", ("float32", "int32"), dtype=torch.int32)
        # in numbers of elements or of bytes
        differ("size", ("", ""), count=count * 2)
        if name in ROOTED:
            first, last = replace(base, root=0), replace(base, root=size - 1)
            words = ("root 0", f"root {size - 1}")
            found.append(Difference(f"root of {name}", (name, first), (name, last), words))
        if name in REDUCING:
            differ("reduce op", ("SUM", "MIN"), op=MIN)
    return found


def divergent(me: Rank, board: Board, size: int, odd: int, count: int) -> Report:
    """One rank calls the other thing."""
    report: Report = {}
    base = joined(me, size, timeout=LIMIT)
    for number, difference in enumerate(differences(count, size)):
        with case(report, difference.name) as outcome:
            comm = split(base, f"split{number}")
            name, arguments = difference.other if me.rank == odd else difference.usual
            call = make(name, comm, arguments)
            asynchronous = number % 2 == 0
            _told(outcome, comm, call, asynchronous, difference)
        comm.abort()
    with case(report, "the communicator they came from"):
        expect_works(base)
        base.finalize()
    return report


def _told(outcome: Outcome, comm, call, asynchronous: bool, difference: Difference) -> None:
    start = time.monotonic()
    try:
        call.run(asynchronous)
    except RuntimeError as error:
        text = str(error)
    else:
        # over already: it is told with its next operation, or when it finalizes
        text = _next(comm)
    outcome.seconds = since(start)
    expect(text.startswith("mismatch"), "'mismatch'", text)
    expect("; got " in text and "; expected " in text, "both fingerprints", text)
    first, second = difference.words
    got = text.split("; got ", 1)[1].split("; expected ", 1)
    both = (first in got[0] and second in got[1]) or (second in got[0] and first in got[1])
    expect(both, f"{first!r} in one fingerprint and {second!r} in the other", text)
    expect(got[0] != got[1].split(" [")[0], "fingerprints that differ", text)
    if comm.state() != "finalized":
        expect_failed(comm, text)


def _next(comm) -> str:
    try:
        comm.barrier()
        comm.finalize()
    except RuntimeError as error:
        return str(error)
    return "no error"


def points(me: Rank, board: Board, size: int) -> Report:
    """A message that does not fit its receive: both sides are told."""
    report: Report = {}
    base = joined(me, size, timeout=LIMIT)
    kinds = {
        "longer": (lambda n: torch.zeros(2 * n), ("elements", "elements")),
        "shorter": (lambda n: torch.zeros(n - 3), ("elements", "elements")),
        "of another dtype": (lambda n: torch.zeros(n, dtype=torch.int32), ("float32", "int32")),
    }
    for count in (SMALL, MIDDLE):
        for kind, (tensor, words) in kinds.items():
            for way in ("send first", "receive first", "batch"):
                name = f"a message {kind}, {count} elements, {way}"
                with case(report, name) as outcome:
                    comm = split(base, f"{kind}{count}{way}")
                    _message(outcome, board, comm, way, tensor(count), count, words, report)
                comm.abort()
    with case(report, "the communicator they came from"):
        expect_works(base)
    return report


def _message(outcome, board, comm, way, sent, count, words, report) -> None:
    rank, size = comm.get_rank(), comm.get_size()
    if rank not in (0, size - 1):
        return
    batch = comm.batch_op_create()
    if rank == 0:
        if way == "receive first":
            time.sleep(0.01)  # so that the receive is likely there; right either way
        if way == "batch":
            batch.send(sent, size - 1)
        call = (lambda: batch.issue()) if way == "batch" else (lambda: comm.send(sent, size - 1))
    else:
        if way == "send first":
            time.sleep(0.01)
        received = torch.zeros(count)
        if way == "batch":
            batch.recv(received, 0)
        call = (lambda: batch.issue()) if way == "batch" else (lambda: comm.recv(received, 0))
    start = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        text = str(error)
    else:
        text = _next_message(comm, size - 1 - rank)
    outcome.seconds = since(start)
    expect(text.startswith("mismatch"), "'mismatch'", text)
    got = text.split("; got ", 1)[-1].split("; expected ", 1)
    expect(len(got) == 2, "both fingerprints", text)
    first, second = words
    both = (first in got[0] and second in got[1]) or (second in got[0] and first in got[1])
    expect(both, f"{first!r} in one fingerprint and {second!r} in the other", text)
    expect_failed(comm, text)


def _next_message(comm, peer: int) -> str:
    try:
        comm.recv(torch.zeros(1), peer)
    except RuntimeError as error:
        return str(error)
    return "no error"


def jobs(transports: list[str], sizes: list[int], _full: bool) -> list[Job]:
    found = []
    for transport in transports:
        for size in sizes:
            for odd, count in {2: ((1, SMALL), (0, MIDDLE)), 4: ((3, SMALL), (1, MIDDLE))}[size]:
                title = f"mismatch: rank {odd} differs, {count} elements,"
                found.append(Job(title, divergent, size, transport, (size, odd, count)))
            found.append(Job("mismatch: messages,", points, size, transport, (size,)))
    return found
