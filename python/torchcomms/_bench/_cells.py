"""What is measured: the cells of the bench, and what came out of each.

A cell is one operation at one size, type and number of ranks. Decides which cells there are and
which do not fit into memory; measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcomms._bench._figures import KIB, MIB, OPERATIONS, bandwidths, real_size

# A third of the free memory is for buffers; the rest is for what the systems take themselves.
SHARE_OF_MEMORY = 3
BUFFERS_PER_RANK = 2

OURS = ("capi", "comm", "dist", "dist-tcp")
MPI = ("openmpi", "mpich")
SYSTEMS = {
    "capi": "the engine through its C ABI",
    "comm": "the engine through torchcomms.new_comm",
    "dist": "the engine through torch.distributed",
    "gloo": "stock gloo through torch.distributed",
    "openmpi": "Open MPI, from C",
    "mpich": "MPICH, from C",
    "dist-tcp": "the engine through torch.distributed, TCP forced",
}
IN_C = ("capi", *MPI)

# Sizes of the targets are among all of them.
TARGET_SIZES = (8, 64 * KIB, MIB, 16 * MIB)
QUICK_SIZES = (8, KIB, 64 * KIB, MIB, 16 * MIB)
QUICK_OPERATIONS = (
    "all_reduce",
    "all_reduce_async",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "barrier",
    "send_recv",
)
LARGEST = 256 * MIB
# Above two ranks on few cores a large operation takes seconds, and bf16 is not another story than
# f32 there; `--full` measures both all the same.
LARGEST_ABOVE_TWO = 16 * MIB
LARGEST_BF16 = 16 * MIB
LARGEST_TCP = 16 * MIB


@dataclass
class Cell:
    """One line of the bench, for all systems."""

    operation: str
    size: int
    dtype: str
    ranks: int
    rounds: dict[str, list[float]] = field(default_factory=dict)  # microseconds of one call
    wrong: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # why a system has no result
    flags_ns: list[float] = field(default_factory=list)  # a flag one way, before and after it

    @property
    def count(self) -> int:
        """Elements of the larger buffer."""
        return self.size // (4 if self.dtype == "f32" else 2)

    def median(self, system: str) -> float | None:
        """Microseconds of one call; None without a result."""
        times = self.rounds.get(system)
        return statistics.median(times) if times else None

    def best(self, systems: Iterable[str]) -> str | None:
        """The fastest of some systems."""
        medians = {s: m for s in systems if (m := self.median(s)) is not None}
        return min(medians, key=medians.__getitem__) if medians else None

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        operation = OPERATIONS[self.operation]
        systems = {}
        for system, times in self.rounds.items():
            median = statistics.median(times)
            of_algorithm, of_bus = bandwidths(operation, self.size, self.ranks, median)
            systems[system] = {
                "rounds_us": [round(t, 4) for t in times],
                "median_us": round(median, 4),
                "min_us": round(min(times), 4),
                "algbw": round(of_algorithm, 4),
                "busbw": round(of_bus, 4),
                "wrong": self.wrong.get(system),
            }
        return {
            "operation": self.operation,
            "size": self.size,
            "count": self.count,
            "dtype": self.dtype,
            "flags_ns": self.flags_ns,
            "ranks": self.ranks,
            "systems": systems,
            "notes": self.notes,
        }


def default_sizes(full: bool) -> list[int]:
    """Powers of 8 and the sizes of the targets; with `full` all powers of 2."""
    step = 2 if full else 8
    sizes = set(TARGET_SIZES) | {LARGEST}
    size = 8
    while size <= LARGEST:
        sizes.add(size)
        size *= step
    return sorted(sizes)


def cells_of(
    ranks: int, operations: Sequence[str], sizes: Sequence[int], dtypes: Sequence[str]
) -> list[Cell]:
    """The cells of a number of ranks: all_reduce, then the others with small sizes first.

    Where time runs out it does for the large ones.
    """
    cells: dict[tuple[str, int, str], Cell] = {}
    for size in sizes:
        for name in operations:
            operation = OPERATIONS[name]
            if name == "send_recv" and ranks != 2:
                continue
            if name == "all_reduce_async" and size != min(sizes):
                continue
            both = operation.reduces and name != "all_reduce_async"
            for dtype in dtypes if both else ("f32",):
                real = real_size(operation, size, ranks, dtype)
                cells.setdefault((name, real, dtype), Cell(name, real, dtype, ranks))
    return sorted(cells.values(), key=lambda cell: cell.operation != "all_reduce")


def spared(cell: Cell) -> str:
    """Empty, or why this cell is only for `--full`."""
    if cell.ranks > 2 and cell.size > LARGEST_ABOVE_TWO:
        return "above 16 MB with more than 2 ranks"
    if cell.dtype == "bf16" and cell.size > LARGEST_BF16:
        return "bf16 above 16 MB"
    if cell.dtype == "bf16" and cell.ranks > 2 and cell.operation != "all_reduce":
        return "bf16 with more than 2 ranks, but for all_reduce"
    return ""


def fits(cell: Cell, available: int) -> bool:
    """Whether the buffers of all ranks stay below the share of the memory that is free."""
    return cell.ranks * BUFFERS_PER_RANK * cell.size <= available // SHARE_OF_MEMORY


def available_memory() -> int:
    """Bytes that can be had without taking them from others."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    raise OSError("/proc/meminfo has no line MemAvailable: expected a Linux since 3.14")


def serves(system: str, cell: Cell) -> str:
    """Empty, or why this system is not asked for this cell."""
    if system in MPI and cell.dtype == "bf16":
        return "n/a: MPI has no bf16"
    if system == "dist-tcp" and (
        cell.operation != "all_reduce" or cell.ranks != 2 or cell.size > LARGEST_TCP
    ):
        return "not asked: forced TCP is measured for all_reduce of 2 ranks to 16 MB"
    return ""
