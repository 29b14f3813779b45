"""Runs a function as N ranks, each a forked process, under a hard limit.

torch is imported once, in the process that forks, so a job costs its own work and not N imports.
A rank that raises, dies or outlives the limit fails the job with the output of every rank; a rank
that hangs says where (faulthandler). Only processes started here are ever signalled.

With HOSTS_SPACES, the network namespaces that tests/hosts/run.sh -o has made, ranks go into them in
turn and are on as many hosts.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import config

import torchcomms

LIMIT = 60.0
# After one rank has failed the others are waiting for it; what they say is worth a moment.
_GRACE = 2.0
# CLONE_NEWNET of sched.h
_NEW_NETWORK = 0x40000000
_LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHCOMM_RANK",
    "TORCHCOMM_SIZE",
    "TORCHCOMM_TIMEOUT_SECONDS",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
    "TORCH_DISTRIBUTED_DEBUG",
    "FERROCOMM_HOST_TRANSPORT",
)


class RanksFailed(AssertionError):
    """A job in which a rank raised, died or did not end."""


@dataclass
class Rank:
    """What a rank knows about its job."""

    rank: int
    size: int
    folder: Path

    def store(self, name: str = "store") -> dist.FileStore:
        return dist.FileStore(str(self.folder / name), self.size)

    def comm(
        self, name: str = "comm", timeout: float = 20.0, **arguments: Any
    ) -> torchcomms.TorchComm:
        """A communicator of all ranks of the job."""
        arguments.setdefault("store", self.store(f"store-{name}"))
        return torchcomms.new_comm(
            "gloo", "cpu", name=name, timeout=timedelta(seconds=timeout), **arguments
        )

    def meet(self, name: str) -> None:
        """Returns when every rank of the job has called it; does not touch the engine.

        For ranks that go on to abort or die: what they said before has arrived by then. Every
        meeting has a file of its own: the last to leave one removes it, and with it what those have
        written who are at the next already.
        """
        store = self.store(f"meet-{name}")
        store.set(f"{name}/{self.rank}", "here")
        store.wait([f"{name}/{rank}" for rank in range(self.size)], timedelta(seconds=30))

    def world(
        self,
        backend: str = "gloo",
        *,
        switch: bool = True,
        timeout: float = 20.0,
        name: str = "world",
        **arguments: Any,
    ) -> None:
        """The default process group; with the switch on the engine must be the one that serves."""
        config.use_torchcomms = switch
        dist.init_process_group(
            backend,
            init_method=f"file://{self.folder / name}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout),
            **arguments,
        )
        if switch:
            served = {g["served_by"] for g in torchcomms.engine_info()["groups"]}
            assert served == {"ferrocomm"}, served


@dataclass
class _Child:
    rank: int
    pid: int
    results: int
    release: int
    log: Path
    report: bytearray = field(default_factory=bytearray)
    outcome: Any = None


def run_ranks(
    body: Callable[..., Any],
    size: int,
    folder: Path,
    *arguments: Any,
    limit: float = LIMIT,
    env: Mapping[str, str] | None = None,
    dies: Iterable[int] = (),
) -> list[Any]:
    """`body(Rank, *arguments)` on `size` ranks; what each returned, None for those in `dies`.

    No rank leaves before all have reported, so that the end of one cannot disturb another; ranks
    in `dies` are expected to kill themselves.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    deadline = time.monotonic() + limit
    children: list[_Child] = []
    try:
        for rank in range(size):
            children.append(_start(body, Rank(rank, size, folder), arguments, env or {}, children))
        _collect(children, deadline, set(dies))
    finally:
        for child in children:
            _end(child)
    return _results(children, set(dies), limit)


def _start(
    body: Callable[..., Any],
    me: Rank,
    arguments: tuple[Any, ...],
    env: Mapping[str, str],
    older: list[_Child],
) -> _Child:
    log = me.folder / f"rank{me.rank}.{time.monotonic_ns()}.log"
    results_read, results_write = os.pipe()
    release_read, release_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(results_write)
        os.close(release_read)
        return _Child(me.rank, pid, results_read, release_write, log)
    code = 1
    try:
        for child in older:
            os.close(child.results)
            os.close(child.release)
        os.close(results_read)
        os.close(release_write)
        _redirect(log)
        _set_environment(me, env)
        _enter_host(me.rank)
        report = _run(body, me, arguments)
        with os.fdopen(results_write, "wb") as pipe:
            pipe.write(pickle.dumps(report))
        os.read(release_read, 1)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(file=2, all_threads=True)


def _set_environment(me: Rank, env: Mapping[str, str]) -> None:
    for name in _LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(RANK=str(me.rank), WORLD_SIZE=str(me.size))
    if "HOSTS_MASTER" in os.environ:
        os.environ["MASTER_ADDR"] = os.environ["HOSTS_MASTER"]
    else:
        os.environ.update(
            LOCAL_RANK=str(me.rank), LOCAL_WORLD_SIZE=str(me.size), MASTER_ADDR="127.0.0.1"
        )
    os.environ.update(env)
    torch.set_num_threads(1)


def _enter_host(rank: int) -> None:
    """Puts this process, of one thread yet, on the host of its rank, when there are hosts."""
    spaces = os.environ.get("HOSTS_SPACES")
    if not spaces:
        return
    names = spaces.split(",")
    space = os.open(f"/run/netns/{names[rank % len(names)]}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(space)


def _run(body: Callable[..., Any], me: Rank, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "ok", body(me, *arguments)
    except BaseException:
        return "raised", traceback.format_exc()


def _collect(children: list[_Child], deadline: float, dies: set[int]) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.results, selectors.EVENT_READ, child)
        failed = False
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(max(0.0, left))
            if not ready:
                return
            for key, _ in ready:
                child = key.data
                part = os.read(child.results, 1 << 20)
                if part:
                    child.report += part
                    continue
                selector.unregister(child.results)
                child.outcome = pickle.loads(child.report) if child.report else ("died", "")
                if child.outcome[0] != "ok" and child.rank not in dies and not failed:
                    failed = True
                    deadline = min(deadline, time.monotonic() + _GRACE)


def _end(child: _Child) -> None:
    os.close(child.release)
    if child.outcome is None:
        # faulthandler writes where it hangs
        os.kill(child.pid, signal.SIGABRT)
    status = _reap(child.pid, 5.0)
    if status is None:
        os.kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
    os.close(child.results)
    if child.outcome is None:
        child.outcome = ("did not end", "")
    elif child.outcome[0] == "died":
        child.outcome = ("died", f"wait status {status}")


def _reap(pid: int, seconds: float) -> int | None:
    pidfd = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)


def _results(children: list[_Child], dies: set[int], limit: float) -> list[Any]:
    values = []
    faults = []
    for child in children:
        kind, value = child.outcome
        if child.rank in dies:
            if kind != "died":
                faults.append(f"rank {child.rank} was to die, but: {kind}")
            values.append(None)
            continue
        values.append(value)
        if kind != "ok":
            within = f" (the limit is {limit:g} s)" if kind == "did not end" else ""
            output = child.log.read_text(errors="replace")[-6000:] if child.log.exists() else ""
            faults.append(f"--- rank {child.rank} {kind}{within}\n{value or ''}\n{output}")
    if faults:
        raise RanksFailed("\n".join(faults))
    return values
