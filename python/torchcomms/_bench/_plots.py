"""Pictures of the results: time over size, both logarithmic, one line per system.

Needs matplotlib, which the package does not depend on: without it there are no pictures. Must not
know how a figure was measured.
"""

from __future__ import annotations

from pathlib import Path

from torchcomms._bench._cells import Cell
from torchcomms._bench._figures import shown_size
from torchcomms._bench._run import Results
from torchcomms._bench._tables import bound_of, grouped

# Ours warm, peers cold; a marker each, for readers and printers without colours.
STYLES = {
    "capi": ("#b30000", "o"),
    "comm": ("#e34a33", "s"),
    "dist": ("#fc8d59", "D"),
    "dist-tcp": ("#c994c7", "v"),
    "gloo": ("#1a1a1a", "x"),
    "openmpi": ("#08519c", "^"),
    "mpich": ("#41ab5d", "P"),
}


def draw(results: Results, folder: Path) -> list[Path]:
    """One PNG per operation and number of ranks; the files.

    Raises:
        ImportError: there is no matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for (ranks, operation), cells in grouped(results.cells).items():
        full = [cell for cell in cells if cell.dtype == "f32" and cell.rounds]
        if len(full) > 1:
            path = folder / f"{operation}-{ranks}.png"
            _draw_one(results, operation, ranks, full, path)
            files.append(path)
    return files


def _draw_one(results: Results, operation: str, ranks: int, cells: list[Cell], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), dpi=80)
    for system in results.plan.systems:
        points = [(c.size, m) for c in cells if (m := c.median(system)) is not None]
        if points:
            colour, marker = STYLES[system]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=system)
    bounds = [(c.size, b) for c in cells if (b := bound_of(results, c)) is not None]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), color="#999999", linestyle=":", label="bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({cell.size for cell in cells})
    axes.set_xticks(sizes, [shown_size(size) for size in sizes], rotation=45, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("size of a rank's larger buffer")
    axes.set_ylabel("time of a call, µs")
    axes.set_title(f"{operation}, f32, {ranks} ranks on {results.machine['cores']} cores")
    axes.grid(True, which="major", color="#dddddd")
    axes.legend()
    figure.tight_layout()
    # without the version and the date in the file, so that equal results are equal files
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
