"""The command line of `python -m torchcomms bench`: options, and where results go.

Measures nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchcomms._bench import _page, _plots, _run, _tables
from torchcomms._bench._cells import SYSTEMS
from torchcomms._bench._figures import ELEMENT_SIZE, OPERATIONS, parsed_size

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="2 ranks, few sizes; under 3 minutes")
    length.add_argument("--full", action="store_true", help="every power of 2; hours")
    parser.add_argument("--ops", type=_some(OPERATIONS), metavar="A,B", help=_names(OPERATIONS))
    parser.add_argument("--sizes", type=_list(parsed_size), metavar="8,64K,1M", help="in bytes")
    parser.add_argument("--ranks", type=_list(_ranks), metavar="2,4,8", help="numbers of ranks")
    parser.add_argument("--systems", type=_some(SYSTEMS), metavar="A,B", help=_names(SYSTEMS))
    parser.add_argument("--dtypes", type=_some(ELEMENT_SIZE), metavar="A,B", help="f32, bf16")
    parser.add_argument("--rounds", type=_ranks, default=5, help="blocks of each system (5)")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="for all operations; what does not fit is left out and said",
    )
    parser.add_argument(
        "--no-extras", action="store_true", help="operations only: no dispatch, no groups made"
    )
    parser.add_argument("--no-install", action="store_true", help="MPI only where it is there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="pictures, with matplotlib")
    parser.add_argument("--output-md", type=Path, metavar="FILE", help="a page of the results")


def run(chosen: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs the bench; 1 when a result of ours is wrong. `words`: the arguments as they were."""
    plan = _run.plan_of(chosen)
    # so that an end from outside ends the ranks too and removes the folder
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="ferrocomm-bench-") as folder:
        results = _run.run(plan, Path(folder), _say)
    for text in (
        _tables.all_tables(results),
        _tables.floors(results),
        _tables.summary(results),
        _tables.targets(results),
    ):
        print(f"{text}\n")
    pictures = _drawn(results, chosen.plots)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(_written(_run.as_data(results)) + "\n")
    if chosen.output_md:
        command = " ".join(["python -m torchcomms", *words])
        _page.write(results, chosen.output_md, pictures, command)
    _say(f"done after {results.seconds:.0f} s")
    wrong = _tables.wrong_elements(results)
    for system, count in wrong.items():
        _say(f"WRONG: {count} elements of {system}; see the column #wrong")
    return 1 if wrong else 0


def _written(data: dict[str, Any]) -> str:
    """JSON with a line per cell, so that two files can be compared."""
    cells = ",\n".join(json.dumps(cell) for cell in data.pop("cells"))
    return f'{json.dumps(data, indent=1)[:-2]},\n "cells": [\n{cells}\n ]\n}}'


def _drawn(results: _run.Results, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return _plots.draw(results, folder)
    except ImportError as error:
        _say(f"no pictures: {error}; pip install matplotlib")
        return []


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _names(known: Iterable[str]) -> str:
    return ", ".join(known)


def _list(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse(text: str) -> list[T]:
        try:
            return [read(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _some(known: Iterable[str]) -> Callable[[str], list[str]]:
    names = list(known)

    def one(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return _list(one)


def _ranks(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{text} is not positive")
    return value
