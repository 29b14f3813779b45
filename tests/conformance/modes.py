"""Runs one case in its mode: waiting at once, later, backwards, over several communicators."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from calls import Prepared, Request, prepare
from elements import width
from factors import NONE, Case, elements
from session import Delay, Session

import torchcomms

_LARGE = 512 << 10
# A prepared call and the communicator it goes to, with a name that members of one group share.
Step = tuple[str, torchcomms.TorchComm, Prepared]
Digests = dict[str, int]


def request_of(case: Case, ranks: int) -> Request:
    """The call that a case asks for in a group of `ranks`."""
    size = width(case.dtype)
    return Request(
        operation=case.operation,
        dtype=case.dtype,
        count=elements(case.size, size, ranks, case.measure),
        op="SUM" if case.op == NONE else case.op,
        input_layout=case.input_layout,
        output_layout="plain" if case.output_layout == NONE else case.output_layout,
        shared=case.sharing == "shared",
        root="first" if case.root == NONE else case.root,
        lengths="even" if case.lengths == NONE else case.lengths,
        values=case.values,
        salt=case.seed,
    )


def run(case: Case, session: Session) -> Digests:
    """Raises when a result is not right; gives what must be alike on all ranks of a group."""
    steps = _steps(case, session)
    delay = Delay(case.delay, case.seed, session.rank, session.size)
    if case.mode == "sync":
        for _, comm, prepared in steps:
            delay.perhaps()
            finish(prepared.issue(comm, False))
    elif case.mode == "threads":
        _in_threads(steps, delay)
    else:
        _asynchronous(case.mode, steps, delay, session.rank)
    return checked(steps)


def checked(steps: Sequence[Step]) -> Digests:
    """Checks every call; digests by group and position."""
    digests: Digests = {}
    for number, (name, _, prepared) in enumerate(steps):
        prepared.check()
        if prepared.common:
            digests[f"{name}/{number}"] = prepared.digest()
    return digests


def finish(works: Sequence[torchcomms.TorchWork]) -> None:
    """Waits, and sees that the works say they are complete."""
    for work in works:
        work.wait()
    for work in works:
        if not work.is_completed() or work.status != torchcomms.WorkStatus.COMPLETED:
            raise AssertionError(f"waited for, but its status is {work.status}")


def _steps(case: Case, session: Session) -> list[Step]:
    """The calls of a case, in the order of issue on rank 0."""
    world, other = ("world", session.world), ("other", session.other)
    half, mirrored = (session.half, session.halves), ("mirrored", session.mirrored)
    large = request_of(case, session.size).count * width(case.dtype) >= _LARGE
    groups = {
        "sync": [world],
        "async": [world],
        "polled": [world],
        "in_flight": [world] * (2 if large else 4),
        "reversed": [world] * (2 if large else 4),
        "interleaved": [world, other] if large else [world, other, world, other],
        "opposite": [world, other],
        "threads": [world, other] if large else [world, other, world, other],
        "halves": [half, world, half],
        "mirrored": [mirrored, world] if large else [mirrored, world, half, mirrored],
    }[case.mode]
    steps: list[Step] = []
    for number, (name, comm) in enumerate(groups):
        request = replace(request_of(case, comm.get_size()), salt=case.seed + 1009 * number)
        steps.append((name, comm, prepare(request, session.place(comm))))
    return steps


def _asynchronous(mode: str, steps: Sequence[Step], delay: Delay, rank: int) -> None:
    issued = list(steps)
    if mode == "opposite" and rank % 2 == 1:
        issued.reverse()
    works: list[list[torchcomms.TorchWork]] = []
    for _, comm, prepared in issued:
        delay.perhaps()
        works.append(prepared.issue(comm, True))
    delay.perhaps()
    if mode == "polled":
        for work in works[0]:
            while not work.is_completed():
                time.sleep(0)
    if mode in ("reversed", "halves", "mirrored"):
        works.reverse()
    for each in works:
        finish(each)


def _in_threads(steps: Sequence[Step], delay: Delay) -> None:
    """A thread per communicator, each synchronous."""
    failures: list[BaseException] = []

    def serve(mine: Sequence[Step]) -> None:
        try:
            for _, comm, prepared in mine:
                finish(prepared.issue(comm, False))
        except BaseException as error:
            failures.append(error)

    delay.perhaps()
    by_name: dict[str, list[Step]] = {}
    for step in steps:
        by_name.setdefault(step[0], []).append(step)
    threads = [threading.Thread(target=serve, args=(mine,)) for mine in by_name.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
