"""Random programs: many different operations on several communicators with nothing between them.

All ranks draw the same program from its seed. What is each rank's own: its delays, which works it
waits for before the end, and in which order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from calls import Request, prepare
from elements import width
from factors import DTYPES, FLOAT8, LAYOUTS, OPERATIONS, OPS, SIZES, elements, supported
from modes import Digests, Step, checked, finish
from session import Delay, Session

import torchcomms

# Memory that one program may hold on one rank.
_BUDGET = 96 << 20


@dataclass(frozen=True)
class Line:
    """One line of a program: a call, or a barrier, on a communicator; it may be synchronous."""

    group: str
    request: Request | None
    synchronous: bool


def draw(seed: int, length: int, ranks: int, synchronous: float) -> list[Line]:
    """The program of `seed`: alike on all ranks."""
    chance = random.Random(f"program {seed}")
    small = [name for name, (base, _) in SIZES.items() if base <= 4 << 10]
    middle = [name for name, (base, _) in SIZES.items() if 4 << 10 < base <= 256 << 10]
    large = [name for name, (base, _) in SIZES.items() if base > 256 << 10]
    lines: list[Line] = []
    held = 0
    for number in range(length):
        group = chance.choice(("world", "world", "world", "other", "half", "mirrored"))
        now = chance.random() < synchronous
        if chance.random() < 0.06:
            lines.append(Line(group, None, now))
            continue
        size = chance.choice(chance.choices((small, middle, large), (70, 26, 4))[0])
        request = _request(chance, size, ranks, seed * 1000 + number)
        parts = ranks if OPERATIONS[request.operation].parts else 1
        cost = request.count * width(request.dtype) * parts * 3
        if held + cost > _BUDGET:
            continue
        held += cost
        lines.append(Line(group, request, now))
    return lines


def _request(chance: random.Random, size: str, ranks: int, salt: int) -> Request:
    operation = chance.choice(list(OPERATIONS))
    traits = OPERATIONS[operation]
    # plain float32 most of the time: the paths that matter most
    usual = chance.random() < 0.4
    kinds = [name for name in DTYPES if not (traits.reduces and name in FLOAT8)]
    dtype = "float32" if usual else chance.choice(kinds)
    op = "SUM" if usual else chance.choice([name for name in OPS if supported(name, dtype)] or OPS)
    layouts = ("plain",) if usual else LAYOUTS
    return Request(
        operation=operation,
        dtype=dtype,
        count=elements(size, width(dtype), ranks, "whole" if traits.parts else "part"),
        op=op,
        input_layout=chance.choice(layouts),
        output_layout=chance.choice(layouts),
        shared=traits.shares and chance.random() < 0.3,
        root=chance.choice(("first", "middle", "last")),
        lengths=chance.choice(("even", "uneven", "gaps")) if traits.uneven else "even",
        values="usual" if chance.random() < 0.7 else "special",
        salt=salt,
    )


def run(seed: int, name: str, session: Session) -> Digests:
    """Runs a program; `name` is its length and kind: `200-mixed`, `200-async`, `200-shuffled`.

    Mixed has synchronous calls and waits in between; async issues everything first; shuffled does
    so in an order of each rank's own, in which only the order on each communicator is kept.
    """
    length, kind = name.split("-")
    program = draw(seed, int(length), session.size, 0.25 if kind == "mixed" else 0.0)
    own = random.Random(f"{seed} rank {session.rank}")
    comms = {
        "world": ("world", session.world),
        "other": ("other", session.other),
        "half": (session.half, session.halves),
        "mirrored": ("mirrored", session.mirrored),
    }
    # Buffers first: then operations follow one another as fast as they can be issued.
    steps: list[Step | None] = []
    for line in program:
        label, comm = comms[line.group]
        prepared = line.request and prepare(line.request, session.place(comm))
        steps.append((label, comm, prepared) if prepared else None)
    order = list(range(len(program)))
    if kind == "shuffled":
        order = _shuffled(program, own)
    delay = Delay("jitter" if seed % 3 else "one_late", seed, session.rank, session.size)
    pending: list[list[torchcomms.TorchWork]] = []
    for position in order:
        line, step = program[position], steps[position]
        if own.random() < 0.15:
            delay.perhaps()
        _, comm = comms[line.group]
        if step is None:
            works = [comm.barrier(async_op=not line.synchronous)]
        else:
            works = step[2].issue(comm, not line.synchronous)
        if line.synchronous:
            finish(works)
        else:
            pending.append(works)
        # All issue in one order here, so whatever this rank waits for, the others are on their way.
        if kind == "mixed" and pending and own.random() < 0.15:
            finish(pending.pop(own.randrange(len(pending))))
    own.shuffle(pending)
    for works in pending:
        finish(works)
    return checked([step for step in steps if step is not None])


def _shuffled(program: Sequence[Line], own: random.Random) -> list[int]:
    """Positions in an order that keeps that of each communicator."""
    queues: dict[str, list[int]] = {}
    for position, line in enumerate(program):
        queues.setdefault(line.group, []).append(position)
    order: list[int] = []
    while queues:
        group = own.choice(sorted(queues))
        for _ in range(own.randint(1, 12)):
            if queues[group]:
                order.append(queues[group].pop(0))
        if not queues[group]:
            del queues[group]
    return order
