"""Reads dumps of the flight recorder: as a table, and as a timeline for Perfetto or Chrome.

A dump is what `hooks.FlightRecorderHook.dump_file` writes, or the engine when a failure ends a
process. Must not know the engine or torch: dumps are read where no job runs.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_UNFINISHED = ("scheduled", "started")
_COLUMNS = ("rank", "group", "seq", "operation", "state", "at ms", "took ms", "bytes", "what")
_RIGHT = frozenset(("rank", "seq", "at ms", "took ms", "bytes"))


class NotADump(ValueError):
    """A file that is no dump of the flight recorder; the message names it."""


@dataclass
class Dump:
    """One process's operations, oldest first."""

    path: Path
    rank: int
    entries: list[dict[str, Any]]
    # of each group: the number of the last collective that this process called
    last: dict[str, int] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trace`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="dumps, one per rank")
    parser.add_argument("--chrome", type=Path, metavar="OUT.json", help="write a timeline there")
    parser.add_argument("--group", help="operations of this group or communicator alone")
    parser.add_argument("--last", type=int, metavar="N", help="the last N operations of each rank")


def run(chosen: argparse.Namespace) -> int:
    """Prints the table and writes the timeline; 2 when a file cannot be read as a dump."""
    try:
        dumps = [read(path) for path in chosen.files]
    except (OSError, NotADump) as error:
        print(f"trace: {error}", file=sys.stderr)
        return 2
    for dump in dumps:
        if chosen.group is not None:
            dump.entries = [e for e in dump.entries if _group(e) == chosen.group]
        if chosen.last is not None:
            dump.entries = dump.entries[-chosen.last :] if chosen.last > 0 else []
    print(table(dumps))
    for line in behind(dumps):
        print(line)
    if chosen.chrome is not None:
        chosen.chrome.write_text(json.dumps(timeline(dumps)))
        print(f"timeline written to {chosen.chrome}: open it at ui.perfetto.dev")
    return 0


def read(path: Path) -> Dump:
    """One dump.

    Raises:
        OSError: the file cannot be read.
        NotADump: it is something else.
    """
    data = _plain_data(path)
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        raise NotADump(f"{path} has no list of entries: expected a flight recorder dump")
    entries = data["entries"]
    status = data.get("pg_status") or {}
    last = {name: int(of.get("last_enqueued_collective", 0)) for name, of in status.items()}
    return Dump(path, _rank(path, entries), entries, last)


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data alone: one that wants a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuses."""
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no plain data")


def _plain_data(path: Path) -> Any:
    """The content of a file of JSON, or of a pickle such as torch's own recorder writes."""
    content = path.read_bytes()
    try:
        return json.loads(content)
    except ValueError as not_json:
        try:
            return _PlainUnpickler(io.BytesIO(content)).load()
        # What the unpickler raises for bytes that are no pickle has no common class.
        except Exception as error:
            raise NotADump(
                f"{path} is neither JSON ({not_json}) nor a pickle of plain data ({error}): "
                "expected what FlightRecorderHook.dump_file wrote"
            ) from None


def table(dumps: Sequence[Dump]) -> str:
    """The operations of all dumps in the order of time."""
    rows = [(dump, entry) for dump in dumps for entry in dump.entries]
    if not rows:
        return "no operations"
    rows.sort(key=lambda row: _created(row[1]))
    zero = _created(rows[0][1])
    cells = [_COLUMNS, *(_cells(dump, entry, zero) for dump, entry in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if column in _RIGHT else cell.ljust(width)
            for column, cell, width in zip(_COLUMNS, row, widths, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def behind(dumps: Sequence[Dump]) -> list[str]:
    """A line for each group in which some ranks have called fewer collectives than others."""
    calls: dict[str, dict[int, int]] = defaultdict(dict)
    for dump in dumps:
        for group, last in dump.last.items():
            calls[group][dump.rank] = last
    lines = []
    for group, ranks in calls.items():
        most = max(ranks.values())
        late = {rank: last for rank, last in sorted(ranks.items()) if last < most}
        if late:
            named = ", ".join(f"rank {rank} after {last}" for rank, last in late.items())
            lines.append(f"{group}: collective {most} was called, but {named}")
    return lines


def timeline(dumps: Sequence[Dump]) -> dict[str, Any]:
    """The same in the trace event format: a process per rank, lanes per group.

    Operations that overlap lie in lanes of their own. One that is not over lasts until the last
    moment that its rank noted.
    """
    events: list[dict[str, Any]] = []
    for dump in dumps:
        events.append(_named("process_name", dump.rank, 0, f"rank {dump.rank}"))
        end = max((_ended(entry) or _created(entry) for entry in dump.entries), default=0)
        lanes: dict[str, list[int]] = {}
        threads: dict[tuple[str, int], int] = {}
        for entry in sorted(dump.entries, key=_created):
            until = max(_ended(entry) or end, _created(entry))
            lane = _free_lane(lanes.setdefault(_group(entry), []), _created(entry), until)
            place = (_group(entry), lane)
            if place not in threads:
                threads[place] = len(threads) + 1
                name = place[0] if lane == 0 else f"{place[0]} ({lane + 1})"
                events.append(_named("thread_name", dump.rank, threads[place], name))
            events.append(_event(dump.rank, threads[place], entry, until))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(rank: int, thread: int, entry: dict[str, Any], until: int) -> dict[str, Any]:
    state = str(entry.get("state", ""))
    name = _operation(entry)
    return {
        "ph": "X",
        "name": f"{name} ({state})" if state in _UNFINISHED else name,
        "cat": "p2p" if entry.get("is_p2p") else "collective",
        "pid": rank,
        "tid": thread,
        "ts": _created(entry) / 1000,
        "dur": (until - _created(entry)) / 1000,
        "args": {
            key: entry[key]
            for key in ("collective_seq_id", "p2p_seq_id", "state", "input_bytes", "input_sizes")
            if key in entry
        },
    }


def _free_lane(busy_until: list[int], start: int, end: int) -> int:
    for lane, until in enumerate(busy_until):
        if until <= start:
            busy_until[lane] = end
            return lane
    busy_until.append(end)
    return len(busy_until) - 1


def _cells(dump: Dump, entry: dict[str, Any], zero: int) -> tuple[str, ...]:
    p2p = bool(entry.get("is_p2p"))
    ended = _ended(entry)
    took = "-" if ended is None else f"{(ended - _created(entry)) / 1e6:.3f}"
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or []
    sizes = entry.get("input_sizes") or entry.get("output_sizes") or []
    shapes = " ".join("x".join(str(n) for n in size) for size in sizes[:3])
    what = [dtypes[0] if dtypes else "", shapes + ("…" if len(sizes) > 3 else "")]
    what.append(str(entry.get("reduce_op") or ""))
    return (
        str(dump.rank),
        _group(entry),
        str(entry.get("p2p_seq_id" if p2p else "collective_seq_id", "")),
        _operation(entry),
        str(entry.get("state", "")),
        f"{(_created(entry) - zero) / 1e6:.3f}",
        took,
        str(max(entry.get("input_bytes", 0), entry.get("output_bytes", 0))),
        " ".join(part for part in what if part),
    )


def _created(entry: dict[str, Any]) -> int:
    return int(entry.get("time_created_ns") or 0)


def _ended(entry: dict[str, Any]) -> int | None:
    at = entry.get("time_discovered_completed_ns")
    return None if at is None else int(at)


def _group(entry: dict[str, Any]) -> str:
    group = entry.get("process_group") or ["?"]
    return str(group[0])


def _operation(entry: dict[str, Any]) -> str:
    """`ferrocomm:send 0->1` without the engine's name in front."""
    return str(entry.get("profiling_name", "?")).split(":", 1)[-1]


def _rank(path: Path, entries: Sequence[dict[str, Any]]) -> int:
    """The rank in the name of the file; else in the largest group that the entries know."""
    number = re.search(r"(\d+)(?:\.json)?$", path.name)
    if number:
        return int(number.group(1))
    largest = max(entries, key=lambda entry: int(entry.get("size", 0)), default={})
    return int(largest.get("rank", 0))
