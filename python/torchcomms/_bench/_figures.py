"""The arithmetic of the bench: sizes, bandwidths, bounds and ratios.

Knows no system and measures nothing.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
ELEMENT_SIZE = {"f32": 4, "bf16": 2}
_UNITS = {"": 1, "B": 1, "K": KIB, "KB": KIB, "KIB": KIB, "M": MIB, "MB": MIB, "MIB": MIB}


@dataclass(frozen=True)
class Operation:
    """What the bench knows of an operation; `ranks` is p in what follows.

    `bus`: factor from the algorithm's bandwidth to the bus's, as nccl-tests has it. `traffic`:
    bytes that a rank must at least read and write in memory, per byte of its larger buffer, when
    ranks read one another's buffers directly. `divided`: the larger buffer has a part per rank.
    """

    name: str
    reduces: bool = False
    divided: bool = False
    rooted: bool = False
    has_size: bool = True

    def bus(self, ranks: int) -> float:
        """busbw / algbw."""
        if not self.has_size:
            return 0.0
        if self.name.startswith("all_reduce"):
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.divided else 1.0

    def traffic(self, ranks: int) -> float:
        """Least bytes through memory per rank and byte of the larger buffer."""
        part = 1 / ranks
        if not self.has_size:
            return 0.0
        if self.name.startswith("all_reduce"):
            # own slice of every rank read and the result written, then the others' slices copied
            return 1 + part + 2 * (ranks - 1) * part
        if self.reduces:
            return 1 + part
        return 2 * part if self.rooted and self.divided else 2.0


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", reduces=True),
        Operation("all_reduce_async", reduces=True),
        Operation("reduce_scatter", reduces=True, divided=True),
        Operation("all_gather", divided=True),
        Operation("all_to_all", divided=True),
        Operation("broadcast", rooted=True),
        Operation("reduce", reduces=True, rooted=True),
        Operation("gather", divided=True, rooted=True),
        Operation("scatter", divided=True, rooted=True),
        Operation("barrier", has_size=False),
        Operation("send_recv"),
    )
}


def parsed_size(text: str) -> int:
    """Bytes of a text such as `8`, `64K` or `16MB`; units are powers of 1024.

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(r"(\d+) *([A-Za-z]*)", text.strip())
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size: expected such as 8, 64K or 16M")
    return int(match.group(1)) * unit


def shown_size(size: int) -> str:
    """`65536` as `64 KB`."""
    for unit, name in ((MIB, "MB"), (KIB, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def real_size(operation: Operation, size: int, ranks: int, dtype: str) -> int:
    """The size that can be had: whole elements, and as many in every part."""
    if not operation.has_size:
        return 0
    step = ELEMENT_SIZE[dtype] * (ranks if operation.divided else 1)
    return max(1, size // step) * step


def bandwidths(
    operation: Operation, size: int, ranks: int, microseconds: float
) -> tuple[float, float]:
    """Of the algorithm and of the bus, in 10^9 bytes per second."""
    if microseconds <= 0:
        return 0.0, 0.0
    of_algorithm = size / microseconds / 1e3
    return of_algorithm, of_algorithm * operation.bus(ranks)


def ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """How many times as fast ours is: the median over blocks measured beside each other."""
    return statistics.median(theirs / own for own, theirs in zip(ours, peer, strict=False))


def bound(
    operation: Operation,
    size: int,
    ranks: int,
    *,
    flag_ns: float,
    copies: Mapping[int, float],
    cores: int,
) -> float:
    """Microseconds that no engine in shared memory can beat: one flag, and the traffic.

    `copies`: bytes copied per nanosecond by each core when all copy, by the size of the copy. A
    copy reads and writes, so it stands for twice its size in traffic. Ranks beyond the cores share
    them.
    """
    traffic = operation.traffic(ranks) * size
    copied = traffic / 2
    if copied == 0:
        return flag_ns / 1e3
    known = [at for at in sorted(copies) if at >= copied]
    rate = copies[known[0] if known else max(copies)]
    return (flag_ns + copied / rate * max(1.0, ranks / cores)) / 1e3
