"""Runs a script as N ranks on the simulated GPU.

    python tests/gpu/sim.py --ranks 2 SCRIPT [ARGUMENTS]

The simulated CUDA and NCCL libraries are built when they have to be, and preloaded in the ranks
alone. A rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, as under
torchrun, and SIMGPU=1, which says that it is on the simulator. Faults are environment variables;
they are listed in rust/simgpu/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKSPACE = ROOT / "rust" / "simgpu"
BUILD = Path(os.environ.get("SIMGPU_BUILD", ROOT / "build" / "simgpu"))

# What cargo builds, and the name under which programs ask for it.
LIBRARIES = {
    "libsimgpu_cudart.so": "libcudart.so.13",
    "libsimgpu_cuda.so": "libcuda.so.1",
    "libsimgpu_nccl.so": "libnccl.so.2",
}

# The release in which NCCL first had a function, for those that are not as old as the rest.
FIRST_RELEASES = {
    (2, 14, 3): ["ncclCommInitRankConfig", "ncclCommFinalize"],
    (2, 18, 1): ["ncclCommSplit"],
    (2, 19, 1): ["ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"],
    (2, 22, 3): ["ncclGroupSimulateEnd"],
    (2, 23, 4): ["ncclCommInitRankScalable"],
    (2, 27, 3): ["ncclCommShrink", "ncclCommWindowRegister", "ncclCommWindowDeregister"],
    (2, 28, 3): ["ncclAlltoAll", "ncclGather", "ncclScatter"],
    (2, 28, 7): ["ncclCommRevoke"],
    (2, 29, 2): [
        "ncclCommGetUniqueId",
        "ncclCommGrow",
        "ncclPutSignal",
        "ncclSignal",
        "ncclWaitSignal",
        "ncclWinGetUserPtr",
        "ncclCommQueryProperties",
    ],
    (2, 29, 7): ["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"],
}

PR_SET_PDEATHSIG = 1


def build() -> Path:
    """Builds the libraries where they are not up to date; gives the folder they are in."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", BUILD / "target"))
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    subprocess.run(
        command,
        cwd=WORKSPACE,
        env={**os.environ, "CARGO_TARGET_DIR": str(target)},
        check=True,
    )
    folder = BUILD / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for built, name in LIBRARIES.items():
        source, goal = target / "release" / built, folder / name
        if not goal.exists() or goal.stat().st_mtime_ns != source.stat().st_mtime_ns:
            # Whoever has the old file mapped keeps it.
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as fresh:
                shutil.copy2(source, fresh.name)
            os.replace(fresh.name, goal)
    return folder


def hide(library: Path, symbols: Sequence[str], goal: Path) -> Path:
    """Writes a copy of a library that lacks some symbols.

    Their names in its table of strings become others of the same length, so that a look-up fails
    as it does with a library that never had them.
    """
    content = library.read_bytes()
    for symbol in symbols:
        name = b"\0" + symbol.encode() + b"\0"
        if name not in content:
            raise ValueError(f"{library.name} does not have {symbol}")
        content = content.replace(name, b"\0~" + symbol.encode()[1:] + b"\0")
    goal.parent.mkdir(parents=True, exist_ok=True)
    goal.write_bytes(content)
    return goal


def older(release: tuple[int, int, int], library: Path, goal: Path) -> dict[str, str]:
    """The environment of ranks that find an older NCCL: its version, and a copy of the library
    without the functions that are newer."""
    major, minor, patch = release
    newer = [name for first, names in FIRST_RELEASES.items() if first > release for name in names]
    return {
        "SIMGPU_NCCL_VERSION": str(major * 10_000 + minor * 100 + patch),
        "FERROCOMM_NCCL_LIB": str(hide(library, newer, goal)),
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Lets a rank end when the launcher does, whatever ends that."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Rank:
    """How a rank ended."""

    rank: int
    status: int | None
    output: str

    @property
    def killed(self) -> bool:
        """Whether the launcher ended it, because time was up."""
        return self.status is None


def environment(
    rank: int,
    ranks: int,
    port: int,
    folder: Path,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """The environment of a rank."""
    preload = ":".join(str(folder / name) for name in LIBRARIES.values())
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_PRELOAD": preload,
        "SIMGPU": "1",
        "SIMGPU_LIB": str(folder),
        "SIMGPU_RANK": str(rank),
        "SIMGPU_DEVICES": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def run(
    command: Sequence[str],
    ranks: int,
    extra: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    folder: Path | None = None,
) -> list[Rank]:
    """Runs a command as every rank and gives how each ended."""
    folder = folder or build()
    port = free_port()
    environments = [environment(rank, ranks, port, folder, extra or {}) for rank in range(ranks)]
    return launch(command, environments, timeout)


def launch(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], timeout: float
) -> list[Rank]:
    """Runs a command once per environment and gives how each ended."""
    with tempfile.TemporaryDirectory() as logs:
        paths = [Path(logs) / str(rank) for rank in range(len(environments))]
        children: list[subprocess.Popen[bytes]] = []
        try:
            for variables, path in zip(environments, paths, strict=True):
                with path.open("wb") as log:
                    child = subprocess.Popen(
                        command,
                        env=variables,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        preexec_fn=die_with_parent,
                    )
                children.append(child)
            statuses = wait(children, timeout)
        finally:
            left = [child for child in children if child.poll() is None]
            for child in left:
                child.kill()
            for child in left:
                # One that is in a real driver may have to wait for a kernel.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(20)
        outputs = [path.read_text(errors="replace") for path in paths]
    return [
        Rank(rank, status, output)
        for rank, (status, output) in enumerate(zip(statuses, outputs, strict=True))
    ]


def wait(children: Sequence[subprocess.Popen[bytes]], timeout: float) -> list[int | None]:
    """Waits until every child has ended or time is up. A child that died is reaped at once, so
    that others see that it is gone."""
    deadline = time.monotonic() + timeout
    statuses: list[int | None] = [None] * len(children)
    watches = {os.pidfd_open(child.pid): index for index, child in enumerate(children)}
    poll = select.poll()
    for watch in watches:
        poll.register(watch, select.POLLIN)
    try:
        open_ = set(watches)
        while open_ and (left := deadline - time.monotonic()) > 0:
            for watch, _ in poll.poll(left * 1000):
                statuses[watches[watch]] = children[watches[watch]].wait()
                poll.unregister(watch)
                open_.discard(watch)
    finally:
        for watch in watches:
            os.close(watch)
    return statuses


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--hide",
        action="append",
        default=[],
        metavar="SYMBOL",
        help="FERROCOMM_NCCL_LIB is a copy of NCCL without this symbol; torch keeps the whole one",
    )
    parser.add_argument(
        "--nccl",
        metavar="RELEASE",
        help="such as 2.28.9: that version is told, and FERROCOMM_NCCL_LIB lacks what is newer",
    )
    parser.add_argument(
        "--build", action="store_true", help="only builds the libraries and prints their folder"
    )
    parser.add_argument("script", nargs="?", help="a Python script, or a program of another kind")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    extra = dict(pair.split("=", 1) for pair in chosen.env)
    folder = build()
    if chosen.build:
        print(folder)
        return 0
    if chosen.script is None:
        parser.error("no script")
    with tempfile.TemporaryDirectory() as variants:
        library, goal = folder / "libnccl.so.2", Path(variants) / "libnccl.so.2"
        if chosen.nccl:
            major, minor, patch = (int(part) for part in chosen.nccl.split("."))
            extra |= older((major, minor, patch), library, goal)
            library = goal
        if chosen.hide:
            extra["FERROCOMM_NCCL_LIB"] = str(hide(library, chosen.hide, goal))
        program = [sys.executable] if chosen.script.endswith(".py") else []
        command = [*program, chosen.script, *chosen.arguments]
        results = run(command, chosen.ranks, extra, chosen.timeout, folder)
    for result in results:
        for line in result.output.splitlines():
            print(f"[{result.rank}] {line}")
        if result.status != 0:
            ended = "killed: time was up" if result.killed else f"status {result.status}"
            print(f"[{result.rank}] {ended}")
    return 0 if all(result.status == 0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
