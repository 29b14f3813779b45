"""What hooks and the flight recorder cost per operation: a table on stdout.

    python tests/bench/hooks.py FOLDER_OF_LIBFERROCOMM [--turns N] [--write]

One rank, an 8-byte all_reduce: it waits for nobody, so that what is measured is the call itself.
Rows take turns and the least of many short rounds counts: a busy machine only ever makes a figure
larger. `--write` puts the table into docs/hooks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "hooks.md"
# What the table in the page stands between.
MARKS = ("<!-- written by tests/bench/hooks.py -->\n", "<!-- to here -->\n")
ROWS = (
    "engine, recorder off",
    "engine",
    "engine, recorder read every 10 ms",
    "Python",
    "Python, hooks registered and removed",
    "Python, recorder read every 500 operations",
    "Python, a pre-hook",
    "Python, a pre-hook and a post-hook",
)

PYTHON = """
import json, sys, threading, time
import torch
import torch.distributed as dist
import torchcomms
from torchcomms.hooks import FlightRecorderHook

calls, rounds = int(sys.argv[1]), int(sys.argv[2])
kinds = ["none", "removed", "readout", "pre", "pre and post"]
comms = {}
for kind in kinds:
    comms[kind] = torchcomms.new_comm("gloo", "cpu", name=kind, store=dist.HashStore())
comms["pre"].register_pre_hook(lambda name, op_id, args: None)
comms["pre and post"].register_pre_hook(lambda name, op_id, args: None)
comms["pre and post"].register_post_hook(lambda op_id, args: None)
comms["removed"].register_pre_hook(lambda name, op_id, args: None).remove()
comms["removed"].register_post_hook(lambda op_id, args: None).remove()
recorder = FlightRecorderHook()
recorder.register_with_comm(comms["readout"])
x, op = torch.ones(2), torchcomms.ReduceOp.SUM
least = dict.fromkeys(kinds, 1e18)
for _ in range(rounds):
    for kind in kinds:
        comm = comms[kind]
        if kind == "readout":
            recorder.dump_json()
        start = time.perf_counter_ns()
        for _ in range(calls):
            comm.all_reduce(x, op)
        least[kind] = min(least[kind], (time.perf_counter_ns() - start) / calls)
print(json.dumps(least))
"""


def build(library: Path, folder: Path) -> Path:
    """The loop in C."""
    program = folder / "hooks"
    sources = [HERE / "hooks.c", HERE / "side_ferrocomm.c", HERE.parent / "c" / "file_store.c"]
    include = HERE.parent.parent / "include"
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", f"-I{include}", f"-I{HERE}"]
    command += [*map(str, sources), "-pthread", f"-L{library}", "-lferrocomm"]
    subprocess.run([*command, f"-Wl,-rpath,{library}", "-o", str(program)], check=True)
    return program


def measure(command: list[str], **variables: str) -> str:
    """What one process prints."""
    env = {**os.environ, "TORCHCOMM_RANK": "0", "TORCHCOMM_SIZE": "1", **variables}
    ran = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=300)
    return ran.stdout.split("\n")[-2]


def main() -> None:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("library", type=Path)
    arguments.add_argument("--turns", type=int, default=10)
    arguments.add_argument("--write", action="store_true", help=f"into {PAGE.name}, too")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(chosen.library.resolve(), folder)

        def engine(turn: str, *more: str, **variables: str) -> float:
            place = folder / turn
            place.mkdir()
            return float(measure([str(program), str(place), "1000", "200", *more], **variables))

        figures: dict[str, list[float]] = {row: [] for row in ROWS}
        for turn in range(chosen.turns):
            off = engine(f"off{turn}", FERROCOMM_RECORDER_ENTRIES="0")
            figures["engine, recorder off"].append(off)
            figures["engine"].append(engine(f"on{turn}"))
            figures["engine, recorder read every 10 ms"].append(engine(f"read{turn}", "readout"))
            python = json.loads(measure([sys.executable, "-c", PYTHON, "500", "20"]))
            for kind, row in zip(python, ROWS[3:], strict=True):
                figures[row].append(python[kind])
    table = "| 8-byte all_reduce, 1 rank | ns |\n| --- | ---: |\n"
    table += "".join(f"| {row} | {min(values):.0f} |\n" for row, values in figures.items())
    print(table)
    cost = min(figures["engine"]) - min(figures["engine, recorder off"])
    print(f"The recorder costs {cost:.0f} ns per operation.")
    if chosen.write:
        before, rest = PAGE.read_text().split(MARKS[0])
        PAGE.write_text(before + MARKS[0] + table + MARKS[1] + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
