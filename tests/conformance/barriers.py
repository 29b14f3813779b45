"""Fixed cases of barriers: nobody leaves one before all have come."""

from __future__ import annotations

import random
import time

from corner import corner
from elements import Difference
from modes import Digests, finish
from session import Delay, Session

import torchcomms


def _holds(session: Session, comms: list[tuple[str, torchcomms.TorchComm]], seed: int) -> None:
    """No rank leaves a barrier before all have come; told through the side channel."""
    delay = Delay("jitter", seed, session.rank, session.size)
    times: list[tuple[str, int, int]] = []
    for turn in range(30):
        for name, comm in comms:
            delay.perhaps()
            came = time.monotonic_ns()
            work = comm.barrier(async_op=turn % 3 == 2)
            if turn % 2:
                while not work.is_completed():
                    time.sleep(0)
            finish([work])
            times.append((name, came, time.monotonic_ns()))
    told = session.tell(times)
    groups = {name for each in told for name, _, _ in each}
    for group in groups:
        members = [[entry for entry in each if entry[0] == group] for each in told]
        members = [entries for entries in members if entries]
        for number in range(len(members[0])):
            last_came = max(entries[number][1] for entries in members)
            first_left = min(entries[number][2] for entries in members)
            if first_left < last_came:
                raise Difference(
                    f"barrier {number} of {group}: a rank left {last_came - first_left} ns before "
                    "the last one came"
                )


@corner
def barrier_holds(session: Session, seed: int) -> Digests:
    _holds(session, [("world", session.world)], seed)
    return {}


@corner
def barriers_of_several_groups(session: Session, seed: int) -> Digests:
    groups = [("world", session.world), (session.half, session.halves)]
    groups += [("mirrored", session.mirrored), ("other", session.other)]
    _holds(session, groups, seed)
    return {}


@corner
def barriers_in_flight(session: Session, seed: int) -> Digests:
    """Many barriers issued at once, on two communicators, in opposite orders."""
    comms = [session.world, session.other]
    if session.rank % 2:
        comms.reverse()
    works = [comm.barrier(async_op=True) for comm in comms for _ in range(50)]
    random.Random(seed + session.rank).shuffle(works)
    finish(works)
    return {}
