"""The checks for a machine with an NVIDIA GPU: `make test-gpu`, or

    python tests/gpu/real/run.py [--prebuilt FOLDER] [--simulated [FOLDER]] [--only WORDS]

Prints one table (check, verdict, detail) and writes it as JSON. Every check is a process of its own
with a limit, ends when its time is up, and stops no other. The whole ends within eight minutes.
Without a GPU one sentence says what is missing. `--simulated` runs the same on the simulated GPU of
rust/simgpu: that tries this script, and says nothing about a GPU.

Without `--prebuilt` the package must be installed for this Python (`make build`); with it, the
folder has what cargo makes (`make prebuilt`), and the rest is compiled here, without Rust.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

import sim  # noqa: E402

BUILD = ROOT / "build" / "test-gpu"
WHOLE = 460.0  # seconds; leaves time to end children within eight minutes
SKIPPED = 77
SWITCH = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"
# From this NCCL on, ranks may share a GPU when they are told that it is meant.
SHARES_A_GPU = (2, 30)

# Those of tests/gpu/programs.py that touch device memory through CUDA and NCCL alone, and where no
# host function waits for another, which CUDA may run on one thread.
PROGRAMS = (
    "reductions",
    "moves",
    "unequal_parts",
    "messages",
    "coalesced",
    "groups",
    "both_devices",
    "operations_keep_their_order_on_all_streams",
    "operations_do_not_overtake_one_another",
    "futures",
    "memory_pools",
    "graphs",
    "made_again",
)


@dataclass
class Row:
    """A line of the table."""

    check: str
    verdict: str
    detail: str
    seconds: float = 0.0
    output: str = field(default="", repr=False)


class Skip(Exception):
    """A check that cannot be made here, and why."""


class Machine:
    """Where ranks run: the real thing, or the simulated one."""

    def __init__(self, simulator: Path | None) -> None:
        self.simulator = simulator
        self.package = ""
        self.facts: dict[str, Any] = {}
        self.deadline = time.monotonic() + WHOLE

    def environment(
        self, rank: int, ranks: int, port: int, extra: Mapping[str, str]
    ) -> dict[str, str]:
        """The environment of a rank."""
        paths = [self.package, str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        own = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            "FC_PACKAGE": self.package,
            "TORCHCOMM_ABORT_ON_ERROR": "0",
            SWITCH: "1",
            **extra,
        }
        if self.simulator is not None:
            return sim.environment(rank, ranks, port, self.simulator, own)
        return {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # Streams that share a connection wait for one another.
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            **own,
        }

    def run(self, command: list[str], ranks: int, seconds: float, **extra: str) -> list[sim.Rank]:
        """Runs a command as every rank, for as long as there is time."""
        left = min(seconds, self.deadline - time.monotonic())
        port = sim.free_port()
        environments = [self.environment(rank, ranks, port, extra) for rank in range(ranks)]
        return sim.launch([sys.executable, *command], environments, max(left, 1.0))

    def pair(self) -> dict[str, str]:
        """What two ranks need in their environment, or why there cannot be two."""
        if self.simulator is not None or self.facts["devices"] > 1:
            return {}
        version = tuple(int(part) for part in self.facts["nccl"].split(".")[:2])
        if version < SHARES_A_GPU:
            raise Skip(f"one GPU, and NCCL {self.facts['nccl']} does not let ranks share it")
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


# A verdict, a detail, and how the processes ended.
Outcome = tuple[str, str, list[sim.Rank]]


def told(rank: sim.Rank) -> str:
    """What a rank has to say about its check."""
    details = re.findall(r"^DETAIL (.*)$", rank.output, re.MULTILINE)
    if details:
        return str(details[-1])
    errors = [line.strip() for line in rank.output.splitlines() if line.strip()]
    return errors[-1][:300] if errors else "nothing was printed"


def judged(ended: list[sim.Rank], seconds: float) -> tuple[str, str]:
    """The verdict of a check that ran, and its detail."""
    for rank in ended:
        if rank.killed:
            return "failed", f"rank {rank.rank} did not end within {seconds:.0f} s; {told(rank)}"
    for rank in ended:
        if rank.status not in (0, SKIPPED):
            where = f"rank {rank.rank}: " if len(ended) > 1 else ""
            how = "" if rank.status == 1 else f" (status {rank.status})"
            return "failed", where + told(rank) + how
    return ("skipped" if ended[0].status == SKIPPED else "passed"), told(ended[0])


def script(*words: str, ranks: int = 1) -> Callable[[Machine, float], Outcome]:
    """A check that is a script of this folder."""

    def run(machine: Machine, seconds: float) -> Outcome:
        extra = machine.pair() if ranks > 1 else {}
        ended = machine.run([str(HERE / words[0]), *words[1:]], ranks, seconds, **extra)
        return *judged(ended, seconds), ended

    return run


def programs(machine: Machine, seconds: float) -> Outcome:
    """The programs of the simulator's tests, on ours and on torch's own: the same results."""
    extra = machine.pair()
    found: dict[str, list[dict[str, str]]] = {}
    all_ended: list[sim.Rank] = []
    for side, switch in (("ours", "1"), ("stock", "0")):
        command = [str(HERE.parent / "programs.py"), *PROGRAMS]
        ended = machine.run(command, 2, seconds / 2, **extra, FC_SIDE=side, **{SWITCH: switch})
        all_ended += ended
        pattern = re.compile(r"^RESULT (\w+) (.*)$", re.MULTILINE)
        found[side] = [dict(pattern.findall(rank.output)) for rank in ended]
        verdict, detail = judged(ended, seconds / 2)
        if verdict != "passed":
            done = min(len(rank) for rank in found[side])
            whose = "our engine" if side == "ours" else "torch's own nccl"
            place = PROGRAMS[done] if done < len(PROGRAMS) else "the end"
            return "failed", f"{whose}, {place}: {detail}", all_ended
    differing = sorted(
        {
            name
            for ours, theirs in zip(found["ours"], found["stock"], strict=True)
            for name in PROGRAMS
            if name not in ours or ours[name] != theirs.get(name)
        }
    )
    if differing:
        return "failed", f"not what torch's own nccl gives: {', '.join(differing)}", all_ended
    return "passed", f"{len(PROGRAMS)} programs, results as torch's own nccl gives", all_ended


def overhead(machine: Machine, seconds: float) -> Outcome:
    """Host time per call beside torch's own nccl."""
    try:
        ranks, extra = 2, machine.pair()
    except Skip:
        ranks, extra = 1, {}
    found, all_ended = {}, []
    for side, switch in (("torch", "0"), ("ours", "1")):
        command = [str(HERE.parent / "overhead.py"), "rank"]
        ended = machine.run(command, ranks, seconds / 2, **extra, **{SWITCH: switch})
        all_ended += ended
        match = re.search(r"^FOUND (.*)$", ended[0].output, re.MULTILINE)
        if match is None:
            return "failed", f"{side}: {judged(ended, seconds / 2)[1]}", all_ended
        found[side] = json.loads(match[1])
    rows = [(name, found["ours"][name], theirs) for name, theirs in found["torch"].items()]
    said = f"us of CPU per call, ours (torch's), {ranks} rank(s): "
    said += "; ".join(f"{name} {ours:.1f} ({theirs:.1f})" for name, ours, theirs in rows)
    verdict = "slower" if any(ours > theirs for _, ours, theirs in rows) else "passed"
    return verdict, said, all_ended


CHECKS: list[tuple[str, float, Callable[[Machine, float], Outcome]]] = [
    ("symbols of NCCL and CUDA", 40, script("ranks.py", "symbols")),
    ("structs and numbers of nccl.h", 30, script("header.py", str(BUILD))),
    ("one rank: operations and dtypes", 60, script("ranks.py", "one_rank")),
    ("stream order, slow kernel", 40, script("ranks.py", "stream_order")),
    ("graph capture and replay", 40, script("ranks.py", "graph")),
    ("host overhead", 100, overhead),
    ("two ranks beside torch's nccl", 120, programs),
    ("time-out under a spinning kernel", 50, script("ranks.py", "time_out")),
    ("time-out: the peer spins", 50, script("ranks.py", "peer_spins", ranks=2)),
]


def attempted(
    name: str,
    seconds: float,
    check: Callable[[Machine, float], Outcome],
    machine: Machine,
) -> Row:
    """A check's row. Whatever goes wrong is this check's own."""
    began = time.monotonic()
    if machine.deadline - began < 5:
        return Row(name, "not run", "the eight minutes are over")
    ended: list[sim.Rank] = []
    try:
        verdict, detail, ended = check(machine, seconds)
    except Skip as reason:
        verdict, detail = "skipped", str(reason)
    except OSError as error:
        verdict, detail = "failed", f"{type(error).__name__}: {error}"
    output = "" if verdict == "passed" else "\n".join(rank.output[-4000:] for rank in ended)
    return Row(name, verdict, detail, time.monotonic() - began, output)


def prepared(machine: Machine, prebuilt: Path | None) -> Row:
    """The package to check: the shim compiled around a prebuilt engine, or what is installed."""
    began = time.monotonic()
    name = "the package"
    if prebuilt is None:
        code = "import torchcomms; print('DETAIL', torchcomms.__file__)"
        ended = machine.run(["-c", code], 1, 60)
        verdict, detail = judged(ended, 60)
        if verdict == "failed":
            detail += "; build it (make build), or name a folder of prebuilt things (--prebuilt)"
        return Row(name, verdict, detail, time.monotonic() - began, ended[0].output)
    command = [sys.executable, str(HERE / "shim.py"), str(prebuilt.resolve()), str(BUILD)]
    limit = min(300.0, machine.deadline - began)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as compiling:
        try:
            folder, complaint = compiling.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # Its compilers as well: they are in its session.
            os.killpg(compiling.pid, signal.SIGKILL)
            return Row(name, "failed", f"the shim was not compiled within {limit:.0f} s", limit)
    if compiling.returncode != 0:
        detail = " ".join(complaint.split())
        return Row(name, "failed", detail[:500], time.monotonic() - began, complaint)
    machine.package = folder.strip()
    took = time.monotonic() - began
    return Row(name, "passed", f"shim compiled here, engine of {prebuilt}", took)


def driver_missing() -> str | None:
    """What of the driver is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1)"
    status = driver.cuInit(0)
    return None if status == 0 else f"the NVIDIA driver finds no GPU (cuInit: {status})"


def missing(machine: Machine) -> str | None:
    """What is missing for a check on a GPU; else fills in the machine's facts."""
    lacks = driver_missing() if machine.simulator is None else None
    if lacks:
        return lacks
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch"
    (ended,) = machine.run([str(HERE / "ranks.py"), "facts"], 1, 90, **{SWITCH: "0"})
    match = re.search(r"^FACTS (.*)$", ended.output, re.MULTILINE)
    if match is None:
        return f"torch does not start on it ({told(ended)})"
    machine.facts = json.loads(match[1])
    lacks = machine.facts["missing"]
    return None if lacks is None else str(lacks)


def head(machine: Machine) -> str:
    """What was checked, and when."""
    facts = machine.facts
    where = "SIMULATED GPU, not a real one" if machine.simulator else facts["card"]
    return (
        f"{datetime.date.today()}: {where}; {facts['devices']} device(s), "
        f"driver {facts['driver']}, NCCL {facts['nccl']}, torch {facts['torch']}, "
        f"Python {platform.python_version()}"
    )


def table(rows: list[Row]) -> str:
    """The rows as text."""
    width = max(len(row.check) for row in rows)
    lines = [f"{'check':{width}}  {'verdict':8} {'s':>5}  detail"]
    lines += [f"{r.check:{width}}  {r.verdict:8} {r.seconds:5.1f}  {r.detail}" for r in rows]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    named = os.environ.get("FERROCOMM_PREBUILT") or None
    parser.add_argument("--prebuilt", type=Path, default=named, help="else FERROCOMM_PREBUILT")
    parser.add_argument("--json", type=Path, default=BUILD / "results.json")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="the checks with these words in their name; may be given more than once",
    )
    parser.add_argument(
        "--simulated",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="on the simulated GPU; FOLDER has its libraries, else they are built",
    )
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    simulator = None
    if chosen.simulated is not None:
        simulator = Path(chosen.simulated).resolve() if chosen.simulated else sim.build()
    machine = Machine(simulator)
    BUILD.mkdir(parents=True, exist_ok=True)
    lacks = missing(machine)
    if lacks:
        print(f"test-gpu: nothing can be checked on a GPU here: {lacks}.", file=sys.stderr)
        return 2
    rows = [prepared(machine, chosen.prebuilt)]
    for name, seconds, check in CHECKS:
        if chosen.only and not any(words in name for words in chosen.only):
            continue
        row = attempted(name, seconds, check, machine)
        print(f"{row.check}: {row.verdict}", file=sys.stderr, flush=True)
        rows.append(row)
    print(head(machine))
    print(table(rows))
    facts = {**machine.facts, "simulated": simulator is not None, "head": head(machine)}
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1))
    good = sum(row.verdict in ("passed", "skipped") for row in rows)
    print(f"test-gpu: {good} of {len(rows)} passed or skipped; {chosen.json}")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
