"""What a process is owed: fork, exit with work in flight, nothing left behind, no CPU when idle."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import torch
from board import PATIENCE, Board, until_asleep
from cases import (
    FAR,
    Job,
    Report,
    case,
    expect,
    expect_kind,
    expect_works,
    failure,
    joined,
    since,
    split,
)
from issuing import LARGE, OPERATIONS, SMALL, Arguments, make
from ranks import Rank

import torchcomms

IDLE_SECONDS = 10.0
IDLE_COMMS = 50
# Of one core: 0.1 %.
IDLE_SHARE = 0.001
EXIT_LIMIT = 20.0
SUM = torchcomms.ReduceOp.SUM


def forked(me: Rank, board: Board, size: int) -> Report:
    """A fork while operations are in flight and a thread waits; the child leaves the hard way."""
    report: Report = {}
    base = joined(me, size)
    last = size - 1
    counts = {name: LARGE // 8 if name in ("send", "batch") else SMALL for name in OPERATIONS}
    comms = {name: split(base, name) for name in OPERATIONS}
    calls = {name: make(name, comms[name], Arguments(last, counts[name])) for name in OPERATIONS}
    waited = split(base, "waited")
    base.barrier()
    if me.rank != last:
        works = {name: call.issue(True) for name, call in calls.items()}
        waiter = threading.Thread(target=lambda: waited.barrier(), daemon=True)
        waiter.start()
        assert waiter.native_id is not None
        until_asleep(os.getpid(), waiter.native_id)
        with case(report, "what the child does with what it inherited"):
            _fork(comms, works)
        board.meet(1, me.rank, size)
    else:
        board.meet(1, me.rank, size)
        works = {name: call.issue(True) for name, call in calls.items()}
        waited.barrier()
    for name, pending in works.items():
        with case(report, f"{name} of the parent"):
            for work in pending:
                work.wait()
            comms[name].barrier()
            comms[name].finalize()
    if me.rank != last:
        waiter.join(FAR)
        expect(not waiter.is_alive(), "the parent's thread to go on", "it waits")
    with case(report, "the parent afterwards"):
        expect_works(base)
        base.finalize()
    return report


def _fork(comms: dict[str, torchcomms.TorchComm], works: dict) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        text = "the child's test did not run"
        try:
            text = _child(comms, works)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text[:4000].encode())
        os.close(write)
        # the handles' end and the libraries', as in a child that returns from main
        works.clear()
        comms.clear()
        ctypes.CDLL(None).exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = _reaped(child)
    expect(text == "", "each call of the child to say that it was forked", text)
    expect(status == 0, "the child to exit with 0", f"wait status {status}")


def _reaped(child: int) -> int | str:
    end = time.monotonic() + EXIT_LIMIT
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"none, it did not end within {EXIT_LIMIT:g} s"


def _child(comms: dict[str, torchcomms.TorchComm], works: dict) -> str:
    """What is not as it should be."""
    faults = []
    for name, comm in comms.items():
        own_rank = comm.get_rank()
        tries = {
            "the call": lambda c=comm, n=name: make(n, c, Arguments(c.get_size() - 1)).run(False),
            "wait": lambda n=name: [work.wait() for work in works[n]],
            "split": lambda c=comm: c.split([0, 1], "child"),
        }
        for what, call in tries.items():
            start = time.monotonic()
            try:
                call()
            except RuntimeError as error:
                if "fork" not in str(error):
                    faults.append(f"{name} rank {own_rank}, {what}: {error!r}")
            else:
                if what == "wait" and all(work.is_completed() for work in works[name]):
                    continue
                faults.append(f"{name} rank {own_rank}, {what}: no error")
            if since(start) > 2:
                faults.append(f"{name}, {what}: took {since(start):.1f} s")
    for number, comm in enumerate(comms.values()):
        for end in (comm.abort, comm.finalize) if number % 2 else (comm.finalize,):
            try:
                end()
            except RuntimeError as error:
                if "fork" not in str(error):
                    faults.append(f"{end.__name__}: {error}")
    return "\n".join(faults)


def nothing_left(me: Rank, board: Board, size: int) -> Report:
    """After finalize no thread is left, and of descriptors what a process keeps for all its
    communicators: the sockets it can be reached at, and links to the other processes."""
    report: Report = {}
    torch.ones(3).sum()
    first = before = _descriptors(), _threads()
    further = _connections() - 1
    # A link that both dialled at once has two sockets; each side opens further ones for what it
    # sends, and takes in those of the other.
    kept = 3 + (2 * 2 + 2 * further) * (size - 1)
    for turn in range(2):
        with case(report, f"round {turn + 1}"):
            base = joined(me, size, f"base{turn}")
            comms = [base, split(base, "child"), joined(me, size, f"other{turn}")]
            for number, comm in enumerate(comms):
                count = (SMALL, LARGE // 32, SMALL)[number]
                for name in OPERATIONS:
                    make(name, comm, Arguments(0, count)).run(number == 2)
            for comm in comms:
                comm.finalize()
            del comm, comms, base
            board.meet(turn + 1, me.rank, size)
            after = _settled(before)
            all_left = Counter(after[0]) - Counter(first[0])
            expect(all_left.total() <= kept, f"at most {kept} descriptors to be left", all_left)
            more = [Counter(now) - Counter(then) for now, then in zip(after, before, strict=True)]
            # The other side's further connections come as it uses them, so perhaps in this round.
            if turn and not further:
                expect(not more[0], "no descriptor to be left after another round", dict(more[0]))
            expect(not more[1], "no thread to be left after finalize", dict(more[1]))
            before = after
    return report


def _connections() -> int:
    """How many connections carry long messages to another process."""
    if os.environ["FERROCOMM_HOST_TRANSPORT"] == "shm":
        return 1
    asked = os.environ.get("FERROCOMM_TCP_STREAMS", "auto")
    if asked != "auto":
        return int(asked)
    return 4 if "HOSTS_SPACES" in os.environ else 1


def _settled(before: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    """What is there now; the engine's thread ends when it has been idle for five seconds."""
    end = time.monotonic() + 9
    while True:
        now = _descriptors(), _threads()
        if now[1] == before[1] or time.monotonic() > end:
            return now
        time.sleep(0.05)


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            continue  # the one that the listing itself had
    return sorted(found)


def _threads() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
        except OSError:
            continue
    return sorted(found)


def idle(me: Rank, board: Board, size: int) -> Report:
    """50 communicators that were used and wait for nothing: no CPU. Even ranks shm, odd TCP.

    Between hosts there is TCP alone.
    """
    report: Report = {}
    within = "auto" if "HOSTS_SPACES" in os.environ else "shm"
    os.environ["FERROCOMM_HOST_TRANSPORT"] = (within, "tcp")[me.rank % 2]
    os.environ["RANK"] = str(me.rank // 2)
    if "LOCAL_RANK" in os.environ:
        os.environ["LOCAL_RANK"] = os.environ["RANK"]
    folder = me.folder / f"job{me.rank % 2}"
    folder.mkdir(exist_ok=True)
    here = Rank(me.rank // 2, size // 2, folder)
    base = joined(here, size // 2)
    comms = [split(base, f"comm{n}") for n in range(IDLE_COMMS - 1)]
    for comm in comms:
        comm.all_reduce(torch.ones(4), SUM, async_op=True).wait()
        comm.all_reduce(torch.ones(100_000), SUM)
    transport = os.environ["FERROCOMM_HOST_TRANSPORT"]
    with case(report, f"{IDLE_COMMS} communicators, {transport}") as outcome:
        board.meet(1, me.rank, size)
        start = time.process_time()
        time.sleep(IDLE_SECONDS)
        used = time.process_time() - start
        outcome.note = (
            f"{used * 1000:.2f} ms of CPU in {IDLE_SECONDS:g} s, {len(_threads())} threads"
        )
        expect(
            used < IDLE_SHARE * IDLE_SECONDS,
            f"less than {IDLE_SHARE * IDLE_SECONDS * 1000:g} ms of CPU in {IDLE_SECONDS:g} s",
            f"{used * 1000:.1f} ms",
        )
        board.meet(2, me.rank, size)
    for comm in comms:
        comm.abort()
    return report


_LEAVERS = {
    "a pending receive": "works = [comm.recv(x, 1, async_op=True)]",
    "a pending collective of 32 MB": (
        "y = torch.ones(8 << 20)\nworks = [comm.all_reduce(y, SUM, async_op=True)]"
    ),
    "a thread that waits": (
        "def wait():\n    with contextlib.suppress(RuntimeError):\n        comm.recv(x, 1)\n"
        "t = threading.Thread(target=wait, daemon=True)\nt.start()\ntime.sleep(0.1)"
    ),
    "an exit code of its own": "comm.recv(x, 1, async_op=True)\nraise SystemExit(3)",
}
_LEAVER = """
import contextlib, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import torchcomms
SUM = torchcomms.ReduceOp.SUM
comm = torchcomms.new_comm("gloo", "cpu", name="leaver", timeout=timedelta(seconds=30),
                           store=dist.FileStore(sys.argv[1] + "/store-leaver", 2))
comm.barrier()
x = torch.zeros(4)
"""


def leaving(me: Rank, board: Board, size: int, what: str) -> Report:
    """A script ends with work in flight: its own exit code, quietly and soon; the other is told."""
    report: Report = {}
    with case(report, what):
        if me.rank == 0:
            _leave(me, what)
        else:
            comm = me.comm("leaver", timeout=FAR)
            comm.barrier()
            text = failure(lambda: comm.recv(torch.zeros(4), 0), "the rank that left to be named")
            expect_kind(text, "peer lost", {0})
    return report


def _leave(me: Rank, what: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _LEAVER + _LEAVERS[what], str(me.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        expect(False, "the process to end", f"it ran {PATIENCE:g} s: {output[-500:]}")
    wanted = 3 if what == "an exit code of its own" else 0
    expect(process.returncode == wanted, f"exit code {wanted}", f"{process.returncode} {output}")
    expect(output == "", "no output", output)


def short_of(me: Rank, board: Board, size: int, what: str) -> Report:
    """Shared memory is short: an error that says so, or the fall-back; and right results."""
    report: Report = {}
    with case(report, what) as outcome:
        skipped = _make_short(me, what)
        if skipped:
            outcome.note = skipped
            return report
        try:
            comm = joined(me, size, timeout=8)
            expect_works(comm)
            call = make("all_reduce", comm, Arguments(0, LARGE // 8))
            call.run(False)
        except RuntimeError as error:
            outcome.note = f"refused: {str(error).split(';')[0]}"
            said = ("memory", "resource", "descriptor", "open files")
            expect(
                any(word in str(error) for word in said), "an error that says what is short", error
            )
        else:
            outcome.note = f"served: {_transport(comm)}"
    return report


def _transport(comm: torchcomms.TorchComm) -> str:
    import json

    return str(json.loads(comm.info()).get("transport"))


def _make_short(me: Rank, what: str) -> str:
    """Empty, or why it cannot be done here."""
    if what == "files may not grow":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    elif what == "no more descriptors":
        here = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (here + 8, here + 8))
    elif what == "the machine has no memory to give":
        return _pretend_memory(me, 17 << 10)
    return ""


def _pretend_memory(me: Rank, kilobytes: int) -> str:
    """Another /proc/meminfo for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, bind, private = 0x20000, 4096, (1 << 14) | (1 << 18)
    pretended = me.folder / f"meminfo{me.rank}"
    text = Path("/proc/meminfo").read_text().splitlines()
    lines = [f"MemAvailable: {kilobytes} kB" if "MemAvailable" in line else line for line in text]
    pretended.write_text("\n".join(lines) + "\n")
    if libc.unshare(new_namespace) or libc.mount(None, b"/", None, private, None):
        return f"skipped, needs root: {os.strerror(ctypes.get_errno())}"
    if libc.mount(str(pretended).encode(), b"/proc/meminfo", None, bind, None):
        return f"skipped, /proc/meminfo cannot be covered: {os.strerror(ctypes.get_errno())}"
    return ""


def killed_job(me: Rank, board: Board, size: int) -> Report:
    """All ranks die in the middle of large transfers: nothing is left in /dev/shm."""
    if me.rank < size:
        comm = joined(me, size)
        board.arrive(me.rank)
        for name in OPERATIONS * 1000:
            make(name, comm, Arguments(0, LARGE // 8)).run(False)
            board.set("rounds", me.rank, 1)
        return {}
    report: Report = {}
    with case(report, "/dev/shm") as outcome:
        before = set(os.listdir("/dev/shm"))
        board.wait_for("rounds", list(range(size)), 1)
        during = set(os.listdir("/dev/shm"))
        for rank in range(size):
            os.kill(int(board.get("pid", rank)), signal.SIGKILL)
        left = set(os.listdir("/dev/shm")) - before
        outcome.note = "" if during == before else f"during the job: {sorted(during - before)}"
        expect(not left, "nothing in /dev/shm that was not there before", sorted(left))
    return report


def jobs(transports: list[str], sizes: list[int], full: bool) -> list[Job]:
    found = []
    if full and "tcp" in transports:
        streams = {"FERROCOMM_TCP_STREAMS": "3"}
        found.append(
            Job("process: leaves nothing, 3 streams,", nothing_left, 2, "tcp", (2,), env=streams)
        )
    for transport in transports:
        for size in sizes:
            found.append(Job("process: forks,", forked, size, transport, (size,)))
            found.append(Job("process: leaves nothing,", nothing_left, size, transport, (size,)))
        found.append(Job("process: killed job,", killed_job, 2, transport, (2,), (0, 1), extra=1))
        for what in list(_LEAVERS) if transport == "shm" else list(_LEAVERS)[1:3]:
            found.append(Job("process: exit with", leaving, 2, transport, (2, what)))
    for what in (
        "files may not grow",
        "no more descriptors",
        "the machine has no memory to give",
    ):
        for transport in ("shm", "auto"):
            found.append(Job("process: short,", short_of, 2, transport, (2, what)))
    found.append(Job("process: idle,", idle, 4, "auto", (4,)))
    return found
