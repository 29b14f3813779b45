"""Rounds of kill, shrink and rejoin, with what they leave behind counted.

    python tests/python/rejoin.py [--rounds 200] [--transport shm|tcp]

Three ranks compute. One is killed (SIGKILL), idle or in the middle of collectives; the other two
see it and go on as two; a fresh process joins, and three go on. One process lives through all
rounds, at changing ranks: its descriptors, threads and memory must be the same in the end. The
store that every communicator is given counts what is asked of it, which must be nothing.

Ranks are forked from this process, which has torch and no communicator. They do what they are told
through a pipe, and nothing here waits for time to go by.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchcomms

LIMIT = 60.0  # seconds; room for a busy machine, reaching it is a failure
SETTLED = 20  # after so many rounds everything has been allocated once
MEMORY = 2048  # KiB by which the resident memory may differ then
M_MMAP_THRESHOLD = -3  # of glibc's mallopt
SUM = torchcomms.ReduceOp.SUM


class Counting(dist.Store):
    """A store that counts requests, and serves none."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def _asked(self, *_: Any) -> Any:
        self.requests += 1
        raise RuntimeError("the store was asked")

    set = get = add = wait = check = delete_key = compare_set = num_keys = _asked
    multi_get = multi_set = append = queue_push = queue_pop = queue_len = _asked


class Worker:
    """A rank: what it is told to do, and what it answers."""

    def __init__(self, index: int) -> None:
        # Tensors get mappings of their own. Otherwise they lie among small things in the heap,
        # which grows whenever none of its gaps is as long: that counts no leaks.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 256 << 10)
        self.store = Counting()
        self.comm = torchcomms.new_comm(
            "gloo",
            "cpu",
            name="rejoin",
            store=self.store,
            timeout=timedelta(seconds=LIMIT),
            enable_reconfigure=True,
        )
        self.index = index

    def handle(self) -> str:
        return self.comm.get_init_handle()

    def reconfigure(self, uuid: int, handles: list[str], ordered: bool) -> list[int]:
        self.comm.reconfigure(uuid, handles if ordered else set(handles)).wait()
        return [self.comm.get_rank(), self.comm.get_size()]

    def compute(self, elements: int) -> float:
        """What an all_reduce of every rank's number gives."""
        tensor = torch.full((elements,), float(self.index))
        self.comm.all_reduce(tensor, SUM)
        assert bool((tensor == tensor[0]).all())
        return float(tensor[0])

    def lose(self, elements: int, answer: Any) -> str:
        """Computes until it fails; says so once it is on its way."""
        tensor = torch.zeros(elements)
        try:
            for turn in range(1 << 30):
                self.comm.all_reduce(tensor, SUM)
                if turn == 2:
                    answer("computing")
        except RuntimeError as error:
            return str(error)
        return "it never failed"

    def abort(self) -> str:
        self.comm.abort()
        return self.comm.state()

    def count(self) -> dict[str, int]:
        """What this process has, and has asked for."""
        status = Path("/proc/self/status").read_text()
        numbers = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "memory": int(numbers["VmRSS"].split()[0]),
            "maps": len(Path("/proc/self/maps").read_text().splitlines()),
            "requests": self.store.requests,
        }

    def finalize(self) -> str:
        self.comm.finalize()
        return self.comm.state()


class Process:
    """A rank as this process sees it."""

    def __init__(self, index: int, older: list[Process]) -> None:
        self.index = index
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            for other in older:
                other.channel.close()
            _serve(theirs, index)
        theirs.close()
        self.channel = ours
        self.waiting = b""

    def tell(self, command: str, **arguments: Any) -> None:
        self.channel.sendall(json.dumps([command, arguments]).encode() + b"\n")

    def answer(self) -> Any:
        """Its next answer; raises what it raised."""
        deadline = time.monotonic() + LIMIT
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            while b"\n" not in self.waiting:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"rank {self.index} does not answer")
                part = self.channel.recv(1 << 16)
                if not part:
                    raise AssertionError(f"rank {self.index} is gone")
                self.waiting += part
        line, self.waiting = self.waiting.split(b"\n", 1)
        kind, value = json.loads(line)
        assert kind == "ok", f"rank {self.index}: {value}"
        return value

    def ask(self, command: str, **arguments: Any) -> Any:
        self.tell(command, **arguments)
        return self.answer()

    def end(self) -> None:
        """Kills it, if it lives, and forgets it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.channel.close()


def _serve(channel: socket.socket, index: int) -> None:
    """The life of a rank; never returns."""
    try:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        torch.set_num_threads(1)
        worker = Worker(index)

        def answer(value: Any, kind: str = "ok") -> None:
            channel.sendall(json.dumps([kind, value]).encode() + b"\n")

        for line in channel.makefile("rb"):
            command, arguments = json.loads(line)
            if command == "lose":
                arguments["answer"] = answer
            try:
                answer(getattr(worker, command)(**arguments))
            except Exception as error:
                answer(f"{type(error).__name__}: {error}", "raised")
    finally:
        os._exit(0)


class Job:
    """The ranks, and the numbers they were given."""

    def __init__(self) -> None:
        self.ranks: list[Process] = []
        self.started = 0
        self.uuid = 0

    def start(self) -> Process:
        process = Process(self.started, self.ranks)
        self.started += 1
        self.ranks.append(process)
        return process

    def regroup(self, ranks: list[Process], ordered: bool) -> list[Process]:
        """All of `ranks` become one group; they in the order of their ranks there."""
        self.uuid += 1
        for process in ranks:
            process.tell("handle")
        handles = [process.answer() for process in ranks]
        for process in ranks:
            process.tell("reconfigure", uuid=self.uuid, handles=handles, ordered=ordered)
        places = [process.answer() for process in ranks]
        assert {size for _, size in places} == {len(ranks)}, places
        if ordered:
            assert [rank for rank, _ in places] == list(range(len(ranks))), places
        by_rank = sorted(zip(places, ranks, strict=True), key=lambda pair: pair[0][0])
        return [process for _, process in by_rank]

    def compute(self, elements: int) -> None:
        """All compute, and all have the sum."""
        for process in self.ranks:
            process.tell("compute", elements=elements)
        wanted = float(sum(process.index for process in self.ranks))
        sums = [process.answer() for process in self.ranks]
        assert sums == [wanted] * len(sums), (sums, wanted)

    def round(self, number: int) -> None:
        """Kill, shrink, rejoin."""
        elements = (16, 300_000)[number % 2]
        # Any rank but the process that lives through all rounds.
        keeper = min(self.ranks, key=lambda process: process.index)
        victim = [process for process in self.ranks if process is not keeper][number // 2 % 2]
        rest = [process for process in self.ranks if process is not victim]
        busy = rest if number % 3 == 0 else self.ranks
        for process in busy:
            process.tell("lose", elements=elements)
        if victim in busy:
            for process in busy:
                assert process.answer() == "computing"
        self.ranks.remove(victim)
        victim.end()
        for process in rest:
            text = process.answer()
            assert "peer lost" in text, text
            if number % 4 == 1:
                assert process.ask("abort") == "aborted"
        # Positions rotate, so that each of them leads.
        rest = rest[number % 2 :] + rest[: number % 2]
        self.ranks = self.regroup(rest, ordered=True)
        self.compute(elements)
        survivors = list(self.ranks)
        fresh = self.start()
        order = [*survivors, fresh]
        if number % 5 == 4:
            self.ranks = self.regroup([fresh, *survivors], ordered=False)
            assert self.ranks[:2] == survivors, "those that were there come first"
        else:
            order = order[number % 3 :] + order[: number % 3]
            self.ranks = self.regroup(order, ordered=True)
        self.compute(elements)


@contextmanager
def transport_of(name: str) -> Iterator[None]:
    before = os.environ.get("FERROCOMM_HOST_TRANSPORT")
    os.environ["FERROCOMM_HOST_TRANSPORT"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["FERROCOMM_HOST_TRANSPORT"]
        else:
            os.environ["FERROCOMM_HOST_TRANSPORT"] = before


def run(rounds: int, transport: str) -> dict[str, Any]:
    """So many rounds; what the oldest process had in the middle and in the end."""
    job = Job()
    counts: list[dict[str, int]] = []
    begun = time.monotonic()
    try:
        with transport_of(transport):
            for _ in range(3):
                job.start()
            keeper = job.ranks[0]
            job.regroup(job.ranks, ordered=True)
            for number in range(rounds):
                job.round(number)
                counts.append(keeper.ask("count"))
            requests = sum(process.ask("count")["requests"] for process in job.ranks)
            for process in job.ranks:
                process.tell("finalize")
            assert [process.answer() for process in job.ranks] == ["finalized"] * 3
    finally:
        for process in job.ranks:
            process.end()
    # A link has one stream or two, by who dialled, and the dead are forgotten once noticed:
    # the least of the later rounds must not be more than the most of the earlier ones was.
    settled = min(SETTLED, rounds // 2)
    return {
        "rounds": rounds,
        "transport": transport,
        "seconds": round(time.monotonic() - begun, 1),
        "requests": requests,
        "early": _over(max, counts[:settled]),
        "late": _over(min, counts[-settled:]),
    }


def _over(choose: Any, counts: list[dict[str, int]]) -> dict[str, int]:
    return {name: choose(count[name] for count in counts) for name in counts[0]}


def check(seen: dict[str, Any]) -> None:
    """Raises when something was left behind, or the store was asked."""
    early, late = seen["early"], seen["late"]
    assert seen["requests"] == 0, seen
    assert late["descriptors"] <= early["descriptors"], seen
    assert late["maps"] <= early["maps"], seen
    assert late["memory"] <= early["memory"] + MEMORY, seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--transport", choices=("shm", "tcp"), action="append")
    arguments = parser.parse_args()
    passed = 0
    for transport in arguments.transport or ("shm", "tcp"):
        seen = run(arguments.rounds, transport)
        print(json.dumps(seen), flush=True)
        check(seen)
        passed += arguments.rounds
    print(f"reconfigure: {passed} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
