"""The order of the run: which system is asked when, until when, and what is said meanwhile.

Must not know how a system does its work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torchcomms._bench import _cells, _floors, _groups, _machine
from torchcomms._bench._cells import Cell
from torchcomms._bench._figures import MIB, OPERATIONS, shown_size
from torchcomms._bench._systems import NoResult, Starter, System, SystemFailed

# How long a block of calls is to take, and how many calls at most. Many short blocks rather than
# few long ones: where others use the cores, a spinning library may need a time slice for each call.
BLOCK_NS = 10_000_000
MOST_CALLS = 4_000
WARMUPS = 50
# A single call that is slower than this is measured with one call a block.
SLOW_NS = 100_000_000
# One call says little about the others when it is shorter than this.
SHORT_NS = 1_000_000
ASK_LIMIT = 60.0
# A check costs more than a call: above this the smaller sizes speak for the larger.
LARGEST_CHECKED = 16 * MIB
SHARES = {2: 2, 4: 1, 8: 1}  # of the time, by number of ranks

Say = Callable[[str], None]


@dataclass
class Plan:
    """What was asked for on the command line, decided."""

    operations: list[str]
    sizes: list[int]
    ranks: list[int]
    systems: list[str]
    dtypes: list[str]
    rounds: int
    limit: float
    full: bool
    install: bool
    extras: bool
    group_ranks: int
    churn: int


@dataclass
class Results:
    """Everything a run found out."""

    plan: Plan
    machine: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    floors: dict[str, Any] = field(default_factory=dict)
    dispatch: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    churn: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def cell(self, operation: str, size: int, ranks: int = 2, dtype: str = "f32") -> Cell | None:
        """The cell of these, where it was measured."""
        for cell in self.cells:
            if (cell.operation, cell.size, cell.ranks, cell.dtype) == (
                operation,
                size,
                ranks,
                dtype,
            ):
                return cell
        return None


def plan_of(chosen: argparse.Namespace) -> Plan:
    """The command line with its defaults."""
    quick = chosen.quick
    sizes = _cells.QUICK_SIZES if quick else _cells.default_sizes(chosen.full)
    operations = _cells.QUICK_OPERATIONS if quick else OPERATIONS
    limit = chosen.limit or (60.0 if quick else 7200.0 if chosen.full else 1300.0)
    return Plan(
        operations=list(chosen.ops or operations),
        sizes=sorted(chosen.sizes or sizes),
        ranks=list(chosen.ranks or ((2,) if quick else (2, 4, 8))),
        systems=list(chosen.systems or _cells.SYSTEMS),
        dtypes=list(chosen.dtypes or ("f32", "bf16")),
        rounds=chosen.rounds,
        limit=limit,
        full=chosen.full,
        install=not chosen.no_install,
        extras=not chosen.no_extras,
        group_ranks=8 if quick else 64,
        churn=200 if quick else 2000,
    )


def run(plan: Plan, folder: Path, say: Say) -> Results:
    """Measures everything; what cannot be measured is said and noted."""
    begin = time.monotonic()
    results = Results(plan, _machine.facts())
    if results.machine["busy"]:
        say(f"this machine is busy (load {results.machine['load']}): expect unsteady numbers")
    starter = Starter(folder, say, plan.install)
    results.missing = starter.prepare(plan.systems)
    for system, why in results.missing.items():
        say(f"without {system}: {why}")
    bounds = "capi" in plan.systems
    if bounds:
        results.floors = _floors.machine(folder)
    if "missing" in results.floors:
        say(f"no bounds: {results.floors['missing']}")
    left = plan.limit
    for index, ranks in enumerate(plan.ranks):
        waiting = plan.ranks[index:]
        share = SHARES.get(ranks, 1) / sum(SHARES.get(r, 1) for r in waiting)
        left -= _Stage(results, starter, ranks, left * share, say, folder).run()
    if bounds:
        results.floors = _floors.better(results.floors, _floors.machine(folder))
    if plan.extras:
        _run_extras(results, say)
    results.machine["versions"] |= _machine.mpi_versions(plan.systems)
    results.seconds = time.monotonic() - begin
    return results


def _run_extras(results: Results, say: Say) -> None:
    plan = results.plan
    say("torch's own dispatch")
    results.dispatch = _floors.dispatch()
    say(f"new_group of {plan.group_ranks} ranks")
    results.groups = _groups.make(plan.group_ranks)
    say(f"{plan.churn} x new_group, all_reduce, destroy")
    results.churn = _groups.churn(plan.churn)
    for found in (results.dispatch, results.groups, results.churn):
        if "missing" in found:
            say(f"no result: {found['missing']}")


class _Stage:
    """All cells of one number of ranks, with the systems alive throughout."""

    def __init__(
        self,
        results: Results,
        starter: Starter,
        ranks: int,
        seconds: float,
        say: Say,
        folder: Path,
    ) -> None:
        self._results = results
        self._starter = starter
        self._ranks = ranks
        self._seconds = seconds
        self._say = say
        self._folder = folder
        self._alive: dict[str, System] = {}
        self._failed: dict[str, str] = dict(results.missing)

    def run(self) -> float:
        """Starts the systems, measures, ends them; the seconds that measuring took."""
        cells = self._cells()
        try:
            self._start()
            begin = time.monotonic()
            skipped = 0
            for number, cell in enumerate(cells):
                if time.monotonic() > begin + self._seconds:
                    skipped = len(cells) - number
                    break
                self._measure(cell)
                if number % 10 == 0:
                    self._say(f"{self._ranks} ranks: {number} of {len(cells)} lines")
            if skipped:
                first = cells[-skipped]
                self._leave_out(
                    f"{skipped} of {len(cells)} lines of {self._ranks} ranks, from "
                    f"{first.operation} of {shown_size(first.size)} on: the time was up (--limit)"
                )
            return time.monotonic() - begin
        finally:
            for system in self._alive.values():
                system.stop()

    def _cells(self) -> list[Cell]:
        """Those that fit into memory."""
        plan = self._results.plan
        wanted = _cells.cells_of(self._ranks, plan.operations, plan.sizes, plan.dtypes)
        if not plan.full:
            for reason in sorted({_cells.spared(cell) for cell in wanted} - {""}):
                self._leave_out(f"{reason} ({self._ranks} ranks): --full measures them")
            wanted = [cell for cell in wanted if not _cells.spared(cell)]
        available = _cells.available_memory()
        fitting = [cell for cell in wanted if _cells.fits(cell, available)]
        if len(fitting) < len(wanted):
            least = min(cell.size for cell in wanted if cell not in fitting)
            self._leave_out(
                f"{self._ranks} ranks from {shown_size(least)} on: the buffers would take more "
                f"than a third of the {available // MIB} MiB of memory that are free"
            )
        return fitting

    def _leave_out(self, what: str) -> None:
        self._results.left_out.append(what)
        self._say(f"left out: {what}")

    def _start(self) -> None:
        for name in self._results.plan.systems:
            if name in self._failed or (name == "dist-tcp" and self._ranks != 2):
                continue
            try:
                self._alive[name] = self._starter.start(name, self._ranks)
            except SystemFailed as error:
                self._fail(name, f"did not start: {error}")
        self._say(f"{self._ranks} ranks: {', '.join(self._alive) or 'no system'} started")

    def _fail(self, name: str, why: str) -> None:
        self._failed[name] = why
        self._say(f"{name} with {self._ranks} ranks is out: {why}")
        system = self._alive.pop(name, None)
        if system is not None:
            words = system.last_words()
            system.kill()
            if words:
                self._say(f"  it printed: {words}")

    def _measure(self, cell: Cell) -> None:
        """One cell: calibration, blocks of every system in turn, and the check of the results."""
        self._results.cells.append(cell)
        self._note_flag(cell)
        calls: dict[str, int] = {}
        for name in self._results.plan.systems:
            reason = _cells.serves(name, cell)
            if reason or name not in self._alive:
                cell.notes[name] = reason or self._failed.get(name, "not started")
                continue
            found = self._ask(name, cell, partial(self._calibrated, cell=cell))
            if found is not None:
                calls[name] = int(found)
        for number in range(self._results.plan.rounds):
            # who goes first changes, so that nobody always follows the same one
            names = list(calls)
            turn = number % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                count = calls[name]
                took = self._ask(name, cell, partial(self._block, cell=cell, calls=count))
                if took is None:
                    calls.pop(name)
                    continue
                cell.rounds.setdefault(name, []).append(took / count / 1e3)
        self._note_flag(cell)
        if cell.size <= LARGEST_CHECKED and OPERATIONS[cell.operation].has_size:
            for name in calls:
                wrong = self._ask(name, cell, partial(self._wrong, cell=cell))
                if wrong is not None:
                    cell.wrong[name] = int(wrong)

    def _ask(self, name: str, cell: Cell, question: Callable[[System], float]) -> float | None:
        """The answer; None and a note when there is none."""
        system = self._alive.get(name)
        if system is None:
            return None
        try:
            return question(system)
        except NoResult as error:
            cell.notes[name] = str(error)[:300]
        except SystemFailed as error:
            cell.notes[name] = str(error)
            cell.rounds.pop(name, None)
            self._fail(name, f"{error}, in {cell.operation} of {shown_size(cell.size)}")
        return None

    def _calibrated(self, system: System, cell: Cell) -> int:
        """How many calls make a block."""
        each = self._block(system, cell, 1, warmup=1)
        if each < SHORT_NS:
            each = self._block(system, cell, 30, warmup=10) / 30
        if each > SLOW_NS:
            return 1
        return int(min(MOST_CALLS, max(3, BLOCK_NS / max(each, 1))))

    def _block(self, system: System, cell: Cell, calls: int, warmup: int | None = None) -> float:
        """Nanoseconds of a block of calls, of the slowest rank; of one way for send_recv."""
        before = min(WARMUPS, calls // 10 + 1) if warmup is None else warmup
        line = f"time {cell.operation} {cell.size} {cell.dtype} {before} {calls}"
        took = max(system.ask(line, ASK_LIMIT))
        return took / 2 if cell.operation == "send_recv" else took

    def _note_flag(self, cell: Cell) -> None:
        """How far apart the processors of two ranks are beside this line."""
        if self._ranks == 2:
            flag = _floors.flag(self._folder)
            cell.flags_ns += [] if flag is None else [flag]

    def _wrong(self, system: System, cell: Cell) -> int:
        return sum(system.ask(f"check {cell.operation} {cell.size} {cell.dtype}", ASK_LIMIT))


def as_data(results: Results) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "machine": results.machine,
        "plan": vars(results.plan),
        "seconds": results.seconds,
        "missing": results.missing,
        "left_out": results.left_out,
        "floors": results.floors,
        "dispatch": results.dispatch,
        "new_group": results.groups,
        "churn": results.churn,
        "cells": [cell.as_data() for cell in results.cells],
    }
