"""The systems as processes: starts one per rank, asks them, ends them.

A system's ranks live through all its blocks and sleep on a socket in between: a rank of an MPI
library spins only inside a call of that library, so it takes nothing from whoever is measured, and
no block pays for a start. Must not know what is measured or how results look.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from torchcomms._bench import _native
from torchcomms._bench._cells import IN_C, MPI

START_LIMIT = 120.0
END_LIMIT = 10.0
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "TORCHCOMM_RANK",
    "TORCHCOMM_SIZE",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
    "FERROCOMM_HOST_TRANSPORT",
)


class SystemFailed(Exception):
    """A rank died, hung or could not join: this system has no more results."""


class NoResult(Exception):
    """The system answered that it cannot do what was asked; it lives on."""


class _Connection:
    """Lines to and from one rank."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._read = bytearray()

    def line(self, deadline: float) -> str:
        """The next line; fails at the end of the stream and at the deadline."""
        while b"\n" not in self._read:
            self.link.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self.link.recv(1 << 16)
            except TimeoutError:
                raise SystemFailed("a rank did not answer in time") from None
            except OSError as error:
                raise SystemFailed(f"the connection to a rank failed: {error}") from None
            if not part:
                raise SystemFailed("a rank has ended")
            self._read += part
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        return line.decode(errors="replace")

    def say(self, line: str) -> None:
        """Sends a line."""
        try:
            self.link.sendall(f"{line}\n".encode())
        except OSError as error:
            raise SystemFailed(f"a rank has ended: {error}") from None


class System:
    """The running ranks of one system."""

    def __init__(self, name: str, ranks: int, folder: Path) -> None:
        self.name = name
        self.ranks = ranks
        self._folder = folder / f"{name}-{ranks}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[_Connection] = []

    def start(self, commands: list[list[str]], environment: Mapping[str, str]) -> None:
        """Starts the ranks and waits until all have joined.

        `commands`: one per process, without the arguments that every rank takes.
        """
        self._folder.mkdir()
        path = str(self._folder / "s")
        with socket.socket(socket.AF_UNIX) as listener, open(self._log(), "wb") as log:
            listener.bind(path)
            listener.listen(self.ranks)
            for index, command in enumerate(commands):
                self._processes.append(self._spawn(command, index, path, environment, log.fileno()))
            deadline = time.monotonic() + START_LIMIT
            for _ in range(self.ranks):
                self._accept(listener, deadline)
        for connection in self._connections:
            answer = connection.line(deadline)
            if not answer.startswith("hello "):
                raise SystemFailed(answer.removeprefix("error "))

    def ask(self, line: str, limit: float) -> list[int]:
        """Sends a line to all ranks; their numbers.

        Raises:
            NoResult: a rank says that it cannot.
            SystemFailed: a rank did not answer.
        """
        deadline = time.monotonic() + limit
        for connection in self._connections:
            connection.say(line)
        answers = [connection.line(deadline) for connection in self._connections]
        refused = [answer for answer in answers if not answer.startswith("ok ")]
        if refused:
            raise NoResult(refused[0].removeprefix("error "))
        return [int(answer.split()[1]) for answer in answers]

    def stop(self) -> None:
        """Asks the ranks to leave, and ends those that do not."""
        for connection in self._connections:
            with contextlib.suppress(SystemFailed):
                connection.say("quit")
        deadline = time.monotonic() + END_LIMIT
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                end(process)
        for connection in self._connections:
            connection.link.close()
        self._connections.clear()
        self._processes.clear()

    def kill(self) -> None:
        """Ends the ranks at once."""
        for process in self._processes:
            end(process)
        self.stop()

    def last_words(self) -> str:
        """The end of what the ranks printed."""
        with contextlib.suppress(OSError):
            return " ".join(self._log().read_text(errors="replace")[-400:].split())
        return ""

    def _log(self) -> Path:
        return self._folder / "log"

    def _spawn(
        self, command: list[str], index: int, path: str, environment: Mapping[str, str], log: int
    ) -> subprocess.Popen[bytes]:
        cores = available_cores()
        place = ",".join(map(str, cores)) if self.ranks <= len(cores) else "-"
        rank = "-" if self.name in MPI else str(index)
        arguments = [path, rank, str(self.ranks), str(self._folder), place]
        inherited = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        return subprocess.Popen(
            [*command, *arguments],
            env=inherited | {"OMP_NUM_THREADS": "1"} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _accept(self, listener: socket.socket, deadline: float) -> None:
        """One more rank; fails when a process ends before."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for process in self._processes:
                selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, process)
            try:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
            finally:
                for key in list(selector.get_map().values()):
                    if key.data is not None:
                        os.close(key.fd)
        if not any(key.fileobj is listener for key, _ in ready):
            what = "ended before it" if ready else f"has not after {START_LIMIT:g} s"
            raise SystemFailed(f"every rank was to connect, one {what}")
        self._connections.append(_Connection(listener.accept()[0]))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started: it has a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(2.0)
            return
        except subprocess.TimeoutExpired:
            continue


def available_cores() -> list[int]:
    """Cores this process may run on."""
    return sorted(os.sched_getaffinity(0))


class Starter:
    """Knows how the ranks of each system are started; builds the programs once."""

    def __init__(self, folder: Path, say: _native.Say, install: bool) -> None:
        self._folder = folder
        self._say = say
        self._install = install
        self._programs: dict[str, Path] = {}
        self._mpi: dict[str, _native.Mpi] = {}

    def prepare(self, systems: list[str]) -> dict[str, str]:
        """Builds what the systems need; why some cannot be had."""
        missing: dict[str, str] = {}
        if any(system in MPI for system in systems):
            try:
                _native.sources()
                found = _native.find_mpi(self._say, self._install)
                self._mpi = {n: m for n, m in found.items() if isinstance(m, _native.Mpi)}
                missing |= {n: str(m) for n, m in found.items() if isinstance(m, _native.Missing)}
            except _native.Missing as error:
                missing |= {name: str(error) for name in MPI}
        for system in IN_C:
            if system not in systems or system in missing:
                continue
            try:
                if system in MPI:
                    program = _native.build_mpi_loops(system, self._mpi[system], self._folder)
                else:
                    program = _native.build_engine_loops(self._folder)
                self._programs[system] = program
            except (_native.Missing, subprocess.TimeoutExpired) as error:
                missing[system] = str(error)
        return {name: why for name, why in missing.items() if name in systems}

    def start(self, name: str, ranks: int) -> System:
        """The ranks of a system, joined.

        Raises:
            SystemFailed: they did not all come.
        """
        system = System(name, ranks, self._folder)
        environment: dict[str, str] = {}
        if name in MPI:
            mpi = self._mpi[name]
            environment = mpi.environment
            launcher = list(mpi.launcher)
            # not where it fits: the library may then yield the core instead of spinning
            if name == "openmpi" and ranks > len(available_cores()):
                launcher.append("--oversubscribe")
            commands = [[*launcher, "-n", str(ranks), str(self._programs[name])]]
        elif name in IN_C:
            commands = [[str(self._programs[name])]] * ranks
        else:
            commands = [[sys.executable, "-m", "torchcomms._bench._worker", name]] * ranks
        if name == "dist-tcp":
            environment = {"FERROCOMM_HOST_TRANSPORT": "tcp"}
        try:
            system.start(commands, environment)
        except SystemFailed as error:
            words = system.last_words()
            system.kill()
            raise SystemFailed(f"{error}" + (words and f"; it printed: {words}")) from None
        except BaseException:
            system.kill()
            raise
        return system
