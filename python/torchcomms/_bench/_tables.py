"""Results as text: a table per operation and system in the form of nccl-tests, then the summary.

Shows; computes nothing but what `_figures` offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchcomms._bench import _targets
from torchcomms._bench._cells import MPI, OURS, SYSTEMS, Cell
from torchcomms._bench._figures import OPERATIONS, bandwidths, bound, shown_size
from torchcomms._bench._run import Results

HEAD = (
    f"# {'size':>10} {'count':>12} {'type':>6} {'redop':>6} {'time':>12} {'algbw':>8} {'busbw':>8} "
    f"{'#wrong':>7} {'least':>12}\n"
    f"# {'(B)':>10} {'(elements)':>12} {'':>6} {'':>6} {'(us)':>12} {'(GB/s)':>8} {'(GB/s)':>8} "
    f"{'':>7} {'(us)':>12}"
)


def system_table(operation: str, system: str, ranks: int, cells: Sequence[Cell]) -> str:
    """All sizes of an operation on a system; the time is the median of the blocks."""
    lines = [f"# {operation}, {ranks} ranks, {system}: {SYSTEMS[system]}", HEAD]
    notes = []
    for cell in cells:
        median = cell.median(system)
        if median is None:
            note = cell.notes.get(system, "no result")
            notes.append(f"# {shown_size(cell.size)} {cell.dtype}: {note}")
            continue
        knows = OPERATIONS[operation]
        of_algorithm, of_bus = bandwidths(knows, cell.size, ranks, median)
        wrong = cell.wrong.get(system)
        lines.append(
            f"  {cell.size:>10} {cell.count:>12} {cell.dtype:>6} "
            f"{'sum' if knows.reduces else 'none':>6} {median:>12.2f} {of_algorithm:>8.2f} "
            f"{of_bus:>8.2f} {'N/A' if wrong is None else wrong:>7} "
            f"{min(cell.rounds[system]):>12.2f}"
        )
    return "\n".join(lines + _grouped(notes))


def _grouped(notes: Sequence[str]) -> list[str]:
    """The first of equal reasons speaks for all."""
    reasons: dict[str, list[str]] = {}
    for note in notes:
        at, _, reason = note.removeprefix("# ").partition(": ")
        reasons.setdefault(reason, []).append(at)
    return [f"# {', '.join(at)}: {reason}" for reason, at in reasons.items()]


def grouped(cells: Iterable[Cell]) -> dict[tuple[int, str], list[Cell]]:
    """By number of ranks and operation, in order of size."""
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.ranks, cell.operation), []).append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: (cell.dtype != "f32", cell.size))
    return groups


def all_tables(results: Results) -> str:
    """Every operation on every system that has a result or a reason of its own."""
    texts = []
    for (ranks, operation), cells in grouped(results.cells).items():
        for system in results.plan.systems:
            if any(cell.median(system) is not None for cell in cells):
                texts.append(system_table(operation, system, ranks, cells))
    return "\n\n".join(texts)


@dataclass(frozen=True)
class Comparison:
    """One line of the summary; times in microseconds, None where there is no result."""

    cell: Cell
    in_c: float | None
    mpi: str | None
    mpi_time: float | None
    in_c_ratio: float | None
    percent: float | None
    comm: float | None
    dist: float | None
    gloo: float | None
    dist_ratio: float | None


def comparisons(results: Results) -> list[Comparison]:
    """The summary: ours in C beside the best MPI, ours from Python beside stock gloo."""
    return [_compared(results, cell) for cells in grouped(results.cells).values() for cell in cells]


def _compared(results: Results, cell: Cell) -> Comparison:
    versus_mpi = _targets.against(cell, "capi", MPI)
    versus_gloo = _targets.against(cell, "dist", ("gloo",))
    mpi = cell.best(MPI)
    own = cell.median("capi")
    limit = bound_of(results, cell)
    return Comparison(
        cell=cell,
        in_c=own,
        mpi=mpi,
        mpi_time=None if mpi is None else cell.median(mpi),
        in_c_ratio=versus_mpi[1] if versus_mpi else None,
        percent=100 * limit / own if own and limit else None,
        comm=cell.median("comm"),
        dist=cell.median("dist"),
        gloo=cell.median("gloo"),
        dist_ratio=versus_gloo[1] if versus_gloo else None,
    )


def bound_of(results: Results, cell: Cell) -> float | None:
    """Microseconds at best on this machine; None where it was not measured."""
    floors = results.floors
    if not floors.get("copies"):
        return None
    return bound(
        OPERATIONS[cell.operation],
        cell.size,
        cell.ranks,
        flag_ns=floors["flag_ns"],
        copies=floors["copies"],
        cores=floors["threads"],
    )


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def summary(results: Results) -> str:
    """Ratios above 1: ours is faster."""
    head = (
        f"# {'operation':<16} {'ranks':>5} {'size':>9} {'type':>5} {'capi us':>11} "
        f"{'best MPI us':>19} {'ratio':>7} {'% bound':>7} {'comm us':>11} "
        f"{'dist us':>11} {'gloo us':>11} {'ratio':>7}"
    )
    lines = [head]
    for c in comparisons(results):
        mpi = "-" if c.mpi is None else f"{c.mpi} {number(c.mpi_time)}"
        lines.append(
            f"  {c.cell.operation:<16} {c.cell.ranks:>5} {shown_size(c.cell.size):>9} "
            f"{c.cell.dtype:>5} {number(c.in_c):>11} {mpi:>19} {number(c.in_c_ratio):>7} "
            f"{number(c.percent, '.0f'):>7} {number(c.comm):>11} {number(c.dist):>11} "
            f"{number(c.gloo):>11} {number(c.dist_ratio):>7}"
        )
    return "\n".join(lines)


def verdict(reached: bool | None) -> str:
    """As a word."""
    return "-" if reached is None else "yes" if reached else "no"


def targets(results: Results) -> str:
    """The numbers to reach."""
    lines = [f"# {'reached':<8} target: measured"]
    lines += [
        f"  {verdict(row.reached):<8} {row.target}: {row.measured}"
        for row in _targets.rows(results)
    ]
    return "\n".join(lines)


def floors(results: Results) -> str:
    """What bounds the numbers."""
    found = results.floors
    lines = []
    if found.get("copies"):
        if found["flag_ns"]:
            lines.append(f"# flag exchange between two cores, one way: {found['flag_ns']:.0f} ns")
        copies = ", ".join(f"{shown_size(n)} {r:.1f}" for n, r in sorted(found["copies"].items()))
        lines.append(f"# memcpy, GB/s on each of {found['threads']} cores at once: {copies}")
    if "torch" in results.dispatch:
        lines.append(
            f"# dist.all_reduce 8 B: torch's own dispatch {results.dispatch['torch']:.2f} us (fake "
            f"backend, one process); the engine with one rank {results.dispatch['one_rank']:.2f} us"
        )
    return "\n".join(lines)


def wrong_elements(results: Results) -> dict[str, int]:
    """Wrong elements of each of our systems over all cells."""
    total: dict[str, int] = {}
    for cell in results.cells:
        for system, wrong in cell.wrong.items():
            if system in OURS and wrong:
                total[system] = total.get(system, 0) + wrong
    return total
