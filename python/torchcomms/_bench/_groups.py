"""What making groups costs: time for many ranks, and what stays behind after thousands.

Run as a program it is one job: it imports torch once, forks its ranks, and prints JSON.

    python -m torchcomms._bench._groups make RANKS ours|gloo
    python -m torchcomms._bench._groups churn COUNT

Must not know the other systems of the bench.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchcomms._bench._cells import available_memory

LIMIT = 240.0
# A rank that was forked after torch was imported takes about this much of its own.
MEMORY_OF_A_RANK = 100 << 20
NEW_GROUPS = 9  # the first of a process loads code that the others find
ROUNDS = 2
CHURN_RANKS = 2
CHURN_SAMPLES = (4, 2, 1)  # fractions of the whole at which the process is looked at


def make(ranks: int) -> dict[str, Any]:
    """Milliseconds of new_group of all ranks, ours and stock gloo in turn; and torch's share.

    That is what new_group takes with torch's fake backend, which connects nobody.
    """
    most = available_memory() // 2 // MEMORY_OF_A_RANK
    fitting = max(2, min(ranks, most))
    result: dict[str, Any] = {
        "wanted": ranks,
        "ranks": fitting,
        "ours": [],
        "gloo": [],
        "torch": [],
    }
    if fitting < ranks:
        result["note"] = f"{ranks} processes do not fit into memory; {fitting} do"
    for _ in range(ROUNDS):
        for system in ("ours", "gloo"):
            found = _job("make", str(fitting), system)
            if "missing" in found:
                return result | {"missing": f"{system}: {found['missing']}"}
            result[system] += found["milliseconds"]
            result["torch"] += found["torch_milliseconds"]
            result[f"{system}_descriptors"] = found["descriptors"]
    return result


def churn(count: int) -> dict[str, Any]:
    """Descriptors, threads and memory after some of `count` x new_group, all_reduce, destroy."""
    return _job("churn", str(count))


def _job(*arguments: str) -> dict[str, Any]:
    """This module as a program; the ranks end with it."""
    with subprocess.Popen(
        [sys.executable, "-m", "torchcomms._bench._groups", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return {"missing": f"{' '.join(arguments)} had not ended after {LIMIT:g} s"}
    if process.returncode != 0:
        # the first rank that failed is the cause; the others follow it
        faults = [line for line in err.splitlines() if line.startswith("rank ")] or [err[-300:]]
        return {"missing": f"{' '.join(arguments)} failed: {faults[0][:400]}"}
    found: dict[str, Any] = json.loads(out)
    return found


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _sample(done: int) -> dict[str, int]:
    """What this process holds now."""
    facts = {"done": done, "descriptors": _descriptors()}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("Threads:"):
            facts["threads"] = int(line.split()[1])
        elif line.startswith("VmRSS:"):
            facts["rss_kib"] = int(line.split()[1])
    return facts


def _world(ours: bool, rank: int, ranks: int, folder: str) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import config

    config.use_torchcomms = ours
    # the store of nearly all users: TCP, at rank 0, which writes its port for the others
    port = Path(folder) / "port"
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, ranks, True, wait_for_workers=False)
        fresh = Path(folder) / "port.new"
        fresh.write_text(str(store.port))
        fresh.rename(port)
    else:
        _wait_for(port)
        store = TCPStore("127.0.0.1", int(port.read_text()), ranks, False)
    # what a launcher tells its ranks
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port.read_text())
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=LIMIT)
    )


def _wait_for(path: Path) -> None:
    """A folder has no portable event for a new file; this is before anything is measured."""
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not write {path}")
        time.sleep(0.002)


def _make_rank(rank: int, ranks: int, system: str, folder: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    import torch.testing._internal.distributed.fake_pg  # registers the backend

    _world(system == "ours", rank, ranks, folder)
    # what the world opens with its first operation is not the groups'
    dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX)
    dist.barrier()
    before = _descriptors()
    milliseconds: dict[str, list[float]] = {"gloo": [], "fake": []}
    for _ in range(NEW_GROUPS):
        for backend, times in milliseconds.items():
            dist.barrier()
            start = time.perf_counter()
            dist.new_group(backend=backend)
            took = torch.tensor([(time.perf_counter() - start) * 1e3])
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            times.append(took.item())
    held = (_descriptors() - before) / NEW_GROUPS
    dist.barrier()
    return {
        "milliseconds": milliseconds["gloo"],
        "torch_milliseconds": milliseconds["fake"],
        "descriptors": held,
    }


def _churn_rank(rank: int, count: int, folder: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    _world(True, rank, CHURN_RANKS, folder)
    tensor = torch.zeros(2)
    marks = {count // part for part in CHURN_SAMPLES}
    samples = []
    start = time.perf_counter()
    for number in range(1, count + 1):
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)  # this rank is a member
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
        if number in marks:
            samples.append(_sample(number))
    seconds = time.perf_counter() - start
    dist.barrier()
    return {"count": count, "samples": samples, "milliseconds_each": seconds * 1e3 / count}


def _run_forked(ranks: int, body: Callable[[int, str], dict[str, Any]]) -> dict[str, Any]:
    """`body` on `ranks` forked processes; the answer of rank 0.

    torch is imported before, so that a rank costs what it does and not an import.
    """
    import torch

    import torchcomms  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ferrocomm-bench-") as folder:
        answer = Path(folder) / "answer"
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    found = body(rank, folder)
                    if rank == 0:
                        answer.write_text(json.dumps(found))
                    code = 0
                except BaseException as error:
                    print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        # the others may fail when rank 0, which has the store, has gone
        if codes[0] != 0 or not answer.exists():
            raise SystemExit(1)
        found = json.loads(answer.read_text())
    return dict(found)


def main() -> int:
    """One job; returns the exit code."""
    kind, number = sys.argv[1], int(sys.argv[2])
    if kind == "make":
        system = sys.argv[3]
        found = _run_forked(number, lambda rank, folder: _make_rank(rank, number, system, folder))
    else:
        found = _run_forked(CHURN_RANKS, lambda rank, folder: _churn_rank(rank, number, folder))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
