"""Runs a Python example of the pages as N ranks, each a forked process.

torch is imported once, here, so that an example costs its own work. A rank finds what torchrun
sets.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path


def run(source: Path, ranks: int, limit: float) -> subprocess.CompletedProcess[str]:
    """What the ranks printed, one after another, and the exit status of the first that failed."""
    import torch

    import torchcomms  # noqa: F401  (so that it is imported once, too)

    torch.set_num_threads(1)
    sys.stdout.flush()
    sys.stderr.flush()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [_start(source, rank, ranks, port) for rank in range(ranks)]
    deadline = time.monotonic() + limit
    statuses = [_end(child, deadline) for child in children]
    out, errors = (
        [_log(source, rank, kind).read_text() for rank in range(ranks)] for kind in ("out", "err")
    )
    failed = next((status for status in statuses if status), 0)
    return subprocess.CompletedProcess([source.name], failed, "".join(out), "".join(errors))


def _log(source: Path, rank: int, kind: str) -> Path:
    return source.parent / f"rank{rank}.{kind}"


def _start(source: Path, rank: int, ranks: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for descriptor, kind in ((1, "out"), (2, "err")):
            log = os.open(_log(source, rank, kind), os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, descriptor)
        for name in [n for n in os.environ if n.startswith(("TORCH", "FERROCOMM"))]:
            del os.environ[name]
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        os.chdir(source.parent)
        runpy.run_path(source.name, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end(child: int, deadline: float) -> int:
    """The exit status; a rank that outlives the limit is ended."""
    pidfd = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        os.close(pidfd)
