"""What hooks and the flight recorder cost per operation: a table on stdout.

    python tests/bench/hooks.py FOLDER_OF_LIBFERROCOMM [--turns N]

One rank, an 8-byte all_reduce: it waits for nobody, so that what is measured is the call itself.
Rows take turns, one process each, and the least of all turns counts: a busy machine only ever makes
a figure larger.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

PYTHON = """
import sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import torchcomms
from torchcomms.hooks import FlightRecorderHook

kind, calls, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
comm = torchcomms.new_comm("gloo", "cpu", store=dist.HashStore())
over = threading.Event()
if kind == "pre":
    comm.register_pre_hook(lambda name, op_id, args: None)
elif kind == "pre and post":
    comm.register_pre_hook(lambda name, op_id, args: None)
    comm.register_post_hook(lambda op_id, args: None)
elif kind == "readout":
    recorder = FlightRecorderHook()
    recorder.register_with_comm(comm)

    def read() -> None:
        while not over.wait(0.1):
            recorder.dump_json()

    threading.Thread(target=read).start()
x, op = torch.ones(2), torchcomms.ReduceOp.SUM
least = 1e18
for _ in range(rounds):
    start = time.perf_counter_ns()
    for _ in range(calls):
        comm.all_reduce(x, op)
    least = min(least, (time.perf_counter_ns() - start) / calls)
over.set()
print(f"{least:.1f}")
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


def measure(command: list[str], **variables: str) -> float:
    """One process's figure, in nanoseconds."""
    env = {**os.environ, "TORCHCOMM_RANK": "0", "TORCHCOMM_SIZE": "1", **variables}
    ran = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120)
    return float(ran.stdout.split()[-1])


def main() -> None:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("library", type=Path)
    arguments.add_argument("--turns", type=int, default=5)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(chosen.library.resolve(), folder)

        def engine(*more: str) -> list[str]:
            place = folder / f"store{len(list(folder.iterdir()))}"
            place.mkdir()
            return [str(program), str(place), "200000", "10", *more]

        def python(kind: str) -> list[str]:
            return [sys.executable, "-c", PYTHON, kind, "20000", "10"]

        rows = {
            "engine, recorder off": lambda: measure(engine(), FERROCOMM_RECORDER_ENTRIES="0"),
            "engine": lambda: measure(engine()),
            "engine, recorder read every 10 ms": lambda: measure(engine("readout")),
            "Python": lambda: measure(python("none")),
            "Python, recorder read every 100 ms": lambda: measure(python("readout")),
            "Python, a pre-hook": lambda: measure(python("pre")),
            "Python, a pre-hook and a post-hook": lambda: measure(python("pre and post")),
        }
        figures = {row: [take()] for row, take in rows.items()}
        for _ in range(chosen.turns - 1):
            for row, take in rows.items():
                figures[row].append(take())
    print(f"| 8-byte all_reduce, 1 rank; least of {chosen.turns} turns | ns |\n| --- | ---: |")
    for row, values in figures.items():
        print(f"| {row} | {min(values):.0f} |")
    cost = min(figures["engine"]) - min(figures["engine, recorder off"])
    print(f"\nThe recorder costs {cost:.0f} ns per operation.")


if __name__ == "__main__":
    main()
