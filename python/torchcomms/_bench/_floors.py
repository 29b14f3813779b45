"""What bounds the numbers: the machine's own speed, and what torch costs by itself.

The first comes from tests/bench/floors.c, the second from this module run as a program: one process
that calls dist.all_reduce on torch's fake backend, whose operations do nothing, and on the engine
with one rank. Must not know the engine's results.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchcomms._bench import _native, _systems

LIMIT = 120.0
BLOCK = 2000
BLOCKS = 9


def machine(folder: Path) -> dict[str, Any]:
    """`flag_ns` one way, `copies` bytes per nanosecond and core by size; `missing` when neither."""
    cores = ",".join(map(str, _systems.available_cores()[:8]))
    try:
        program = _native.build_floors(folder)
    except (_native.Missing, subprocess.TimeoutExpired) as error:
        return {"missing": str(error)}
    done = subprocess.run(
        [str(program), cores], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode != 0:
        return {"missing": f"the program of floors ended with {done.returncode}: {done.stderr}"}
    return parsed(done.stdout)


def flag(folder: Path) -> float | None:
    """Nanoseconds of a flag one way, now: a hypervisor may move processors nearer or farther."""
    program = folder / "floors"
    cores = _systems.available_cores()[:2]
    if len(cores) < 2 or not program.exists():
        return None
    line = [str(program), ",".join(map(str, cores)), "flag"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    found: float = parsed(done.stdout)["flag_ns"]
    return found or None


def better(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements the quicker: what the machine can do while nobody disturbs it."""
    if "missing" in first or "missing" in second:
        return first
    copies = {size: max(rate, second["copies"][size]) for size, rate in first["copies"].items()}
    return first | {"flag_ns": min(first["flag_ns"], second["flag_ns"]), "copies": copies}


def parsed(printed: str) -> dict[str, Any]:
    """What the program of floors printed."""
    facts: dict[str, Any] = {"flag_ns": 0.0, "copies": {}}
    for line in printed.splitlines():
        word, *numbers = line.split()
        if word == "flag":
            facts["flag_ns"] = float(numbers[0])
        elif word == "copy":
            facts["threads"] = int(numbers[0])
            facts["copies"][int(numbers[1])] = float(numbers[2])
    return facts


def dispatch() -> dict[str, Any]:
    """Microseconds of dist.all_reduce of 8 B: `torch` alone, and with the engine at one rank."""
    done = subprocess.run(
        [sys.executable, "-m", "torchcomms._bench._floors"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode != 0:
        return {"missing": done.stderr.strip()[-400:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure_dispatch() -> dict[str, float]:
    """In a process of its own."""
    import torch
    import torch.distributed as dist
    from torch.distributed import config
    from torch.testing._internal.distributed import fake_pg

    import torchcomms

    os.sched_setaffinity(0, {_systems.available_cores()[0]})
    torch.set_num_threads(1)
    config.use_torchcomms = False
    store = fake_pg.FakeStore()  # type: ignore[no-untyped-call, unused-ignore]
    dist.init_process_group("fake", store=store, rank=0, world_size=1)
    fake = dist.group.WORLD
    config.use_torchcomms = True
    ours = dist.new_group(backend="gloo")
    assert isinstance(ours, dist.ProcessGroup)  # this rank is a member
    served = {g["served_by"] for g in torchcomms.engine_info()["groups"]}
    if "ferrocomm" not in served:
        raise RuntimeError(f"the group of one rank is served by {served}")
    tensor = torch.zeros(2)
    times: dict[str, list[float]] = {"torch": [], "one_rank": []}
    for _ in range(BLOCKS):
        for name, group in (("torch", fake), ("one_rank", ours)):
            start = time.perf_counter_ns()
            for _ in range(BLOCK):
                dist.all_reduce(tensor, group=group)
            times[name].append((time.perf_counter_ns() - start) / BLOCK / 1e3)
    dist.destroy_process_group()
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    print(json.dumps(_measure_dispatch()))
