"""The numbers to reach, one row each: what is demanded, what was measured, whether it is reached.

Judges results; measures nothing. A row without a result says what was not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torchcomms._bench._cells import MPI, Cell
from torchcomms._bench._figures import KIB, MIB, ratio, shown_size
from torchcomms._bench._run import Results

# A thousand groups that leave less than this behind are flat: the allocator's own drift is larger.
FLAT_KIB_PER_THOUSAND = 2048


@dataclass(frozen=True)
class Row:
    """One target. `reached` is None where it was not measured."""

    target: str
    measured: str
    reached: bool | None


def rows(results: Results) -> list[Row]:
    """All targets, in their order; none is judged where two ranks must share a core."""
    found: list[Row] = []
    for judge in _JUDGES:
        found += judge(results)
    if results.machine["cores"] < 2:
        return [replace(row, reached=None) for row in found]
    return found


def _unmeasured(target: str) -> Row:
    return Row(target, "not measured", None)


def against(cell: Cell | None, ours: str, peers: Iterable[str]) -> tuple[str, float] | None:
    """The best peer and how many times as fast ours is."""
    if cell is None or not cell.rounds.get(ours):
        return None
    peer = cell.best(peers)
    return None if peer is None else (peer, ratio(cell.rounds[ours], cell.rounds[peer]))


def _versus_mpi(results: Results, operation: str, size: int, least: float, target: str) -> Row:
    cell = results.cell(operation, size)
    found = against(cell, "capi", MPI)
    if cell is None or found is None:
        return _unmeasured(target)
    peer, times = found
    own, theirs = cell.median("capi") or 0.0, cell.median(peer) or 0.0
    return Row(target, f"{own:.2f} µs, {peer} {theirs:.2f} µs: {times:.2f} x", times >= least)


def _small_all_reduce(results: Results) -> list[Row]:
    found = [
        _versus_mpi(
            results, "all_reduce", 8, 1.0, "all_reduce f32 8 B in C: no slower than the best MPI"
        )
    ]
    target = "all_reduce f32 8 B in C: at most 2 x the one-way flag exchange"
    cell = results.cell("all_reduce", 8)
    own = cell.median("capi") if cell else None
    flags = cell.flags_ns if cell else []
    if own is None or not flags:
        return [*found, _unmeasured(target)]
    flag = min(flags)
    beside = " and ".join(f"{each:.0f}" for each in flags)
    text = f"{own * 1e3:.0f} ns, flag {beside} ns beside it: {own * 1e3 / flag:.2f} x"
    return [*found, Row(target, text, own * 1e3 <= 2 * flag)]


def _large_all_reduce(results: Results) -> list[Row]:
    return [
        _versus_mpi(
            results,
            "all_reduce",
            size,
            2.0,
            f"all_reduce f32 {shown_size(size)} in C: at least 2 x as fast as the best MPI",
        )
        for size in (64 * KIB, MIB, 16 * MIB)
    ]


def _others(results: Results) -> list[Row]:
    found = [_versus_mpi(results, "barrier", 0, 1.0, "barrier in C: no slower than the best MPI")]
    for operation in ("all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        for size in (64 * KIB, MIB):
            target = f"{operation} {shown_size(size)} in C: faster than the best MPI"
            found.append(_versus_mpi(results, operation, size, 1.0, target))
    return found


def _python(results: Results) -> list[Row]:
    targets = (
        "dist.all_reduce 8 B from Python: at most 10 µs",
        "dist.all_reduce 8 B from Python: at least 20 x as fast as gloo",
        "dist.all_reduce 8 B: our share above torch's own dispatch at most 2 µs",
    )
    cell = results.cell("all_reduce", 8)
    own = cell.median("dist") if cell else None
    if cell is None or own is None:
        return [_unmeasured(target) for target in targets]
    found = [Row(targets[0], f"{own:.2f} µs", own <= 10)]
    versus = against(cell, "dist", ("gloo",))
    if versus is None:
        found.append(_unmeasured(targets[1]))
    else:
        gloo = cell.median("gloo") or 0.0
        found.append(Row(targets[1], f"gloo {gloo:.1f} µs: {versus[1]:.1f} x", versus[1] >= 20))
    torch = results.dispatch.get("torch")
    if torch is None:
        return [*found, _unmeasured(targets[2])]
    share = own - torch
    text = f"{own:.2f} - {torch:.2f} = {share:.2f} µs, with the exchange itself"
    return [*found, Row(targets[2], text, share <= 2)]


def _async(results: Results) -> list[Row]:
    target = "async all_reduce and wait, 8 B, from Python: at most 15 µs"
    cell = results.cell("all_reduce_async", 8)
    own = cell.median("dist") if cell else None
    return [_unmeasured(target) if own is None else Row(target, f"{own:.2f} µs", own <= 15)]


def _half(results: Results) -> list[Row]:
    target = "bf16 all_reduce in C: no slower per byte than f32"
    times: dict[int, float] = {}
    for cell in results.cells:
        if (cell.operation, cell.ranks, cell.dtype) != ("all_reduce", 2, "bf16"):
            continue
        full = results.cell("all_reduce", cell.size)
        if full and full.rounds.get("capi") and cell.rounds.get("capi"):
            times[cell.size] = ratio(cell.rounds["capi"], full.rounds["capi"])
    if not times:
        return [_unmeasured(target)]
    worst = min(times, key=times.__getitem__)
    text = (
        f"f32 / bf16: median {statistics.median(times.values()):.2f} x, least "
        f"{times[worst]:.2f} x at {shown_size(worst)}"
    )
    # two measurements of the same thing differ by some percent
    return [Row(target, text, times[worst] >= 0.95)]


def _least(results: Results, ranks: int, ours: str, largest: int) -> tuple[float, Cell] | None:
    """The worst ratio to gloo over the sizes of all_reduce, and where it is."""
    found = []
    for cell in results.cells:
        if cell.operation != "all_reduce" or cell.ranks != ranks or cell.size > largest:
            continue
        versus = against(cell, ours, ("gloo",))
        if versus is not None:
            found.append((versus[1], cell))
    return min(found, key=lambda pair: pair[0]) if found else None


def _where(cell: Cell) -> str:
    return f"{shown_size(cell.size)} {cell.dtype}"


def _oversubscribed(results: Results) -> list[Row]:
    rows = []
    for ranks in (4, 8):
        for largest, least, words in (
            (1 << 62, 1.0, "never slower than gloo at any size"),
            (64 * KIB, 3.0, "at least 3 x as fast as gloo up to 64 KB"),
        ):
            target = f"{ranks} ranks, dist.all_reduce: {words}"
            found = _least(results, ranks, "dist", largest)
            if found is None:
                rows.append(_unmeasured(target))
                continue
            text = f"least {found[0]:.2f} x, at {_where(found[1])}"
            rows.append(Row(target, text, found[0] >= least))
    return rows


def _tcp(results: Results) -> list[Row]:
    target = "TCP forced, dist.all_reduce 8 B to 16 MB: faster than gloo at every size"
    found = _least(results, 2, "dist-tcp", 16 * MIB)
    if found is None:
        return [_unmeasured(target)]
    text = f"least {found[0]:.2f} x, at {_where(found[1])}"
    return [Row(target, text, found[0] > 1.0)]


def _new_group(results: Results) -> list[Row]:
    groups = results.groups
    target = "new_group of 64 ranks: at least 20 x as fast as gloo, no descriptor per member"
    if not groups.get("ours") or not groups.get("gloo"):
        return [_unmeasured(target)]
    own, gloo = statistics.median(groups["ours"]), statistics.median(groups["gloo"])
    held, ranks = groups["ours_descriptors"], groups["ranks"]
    floor = statistics.median(groups["torch"])
    text = (
        f"{ranks} ranks: {own:.1f} ms, gloo {gloo:.1f} ms: {gloo / own:.1f} x; of it torch's own "
        f"new_group {floor:.1f} ms, which alone allows {gloo / floor:.1f} x; {held:.1f} "
        f"descriptors a group, gloo {groups['gloo_descriptors']:.1f}"
    )
    return [Row(target, text, gloo / own >= 20 and held < ranks - 1 and ranks >= 64)]


def _churn(results: Results) -> list[Row]:
    target = "2,000 x new_group, all_reduce, destroy: flat descriptors, threads and memory"
    samples = results.churn.get("samples")
    if not samples or len(samples) < 2:
        return [_unmeasured(target)]
    first, last = samples[0], samples[-1]
    grown = last["rss_kib"] - first["rss_kib"]
    allowed = FLAT_KIB_PER_THOUSAND * (last["done"] - first["done"]) / 1000
    flat = (
        last["descriptors"] <= first["descriptors"]
        and last["threads"] <= first["threads"]
        and grown <= allowed
    )
    text = "; ".join(
        f"after {s['done']}: {s['descriptors']} descriptors, {s['threads']} threads, "
        f"{s['rss_kib'] / 1024:.1f} MiB"
        for s in samples
    )
    return [Row(target, text, flat and last["done"] >= 2000)]


_JUDGES: tuple[Callable[[Results], list[Row]], ...] = (
    _small_all_reduce,
    _large_all_reduce,
    _others,
    _python,
    _async,
    _half,
    _oversubscribed,
    _tcp,
    _new_group,
    _churn,
)
