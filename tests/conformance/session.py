"""One rank of a job: its communicators, and a side channel that the engine has no part in.

What ranks tell each other about a case goes through a store of torch, never through the
collectives that are being tested.
"""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from typing import Any

from calls import Place
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

import torchcomms

# Limit of each operation: guards against a hang on a busy machine, not a measure of speed.
OPERATION_LIMIT = timedelta(seconds=20)
SIDE_LIMIT = timedelta(seconds=100)


def open_store(address: str, rank: int, size: int) -> Store:
    """The store at `tcp://HOST:PORT`, which rank 0 serves, or at `file:PATH`."""
    if address.startswith("file:"):
        return FileStore(address.removeprefix("file:"), size)
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return TCPStore(
        host, int(port), size, is_master=rank == 0, wait_for_workers=False, timeout=SIDE_LIMIT
    )


def serve_store(folder: str, rank: int, size: int) -> Store:
    """A TCP store that rank 0 serves at a port of the system's choice, told through a file."""
    meeting = FileStore(os.path.join(folder, "meeting"), size)
    if rank == 0:
        store = TCPStore(
            "127.0.0.1", 0, size, is_master=True, wait_for_workers=False, timeout=SIDE_LIMIT
        )
        meeting.set("port", str(store.port))
        return store
    port = int(meeting.get("port"))
    return TCPStore("127.0.0.1", port, size, is_master=False, timeout=SIDE_LIMIT)


class Delay:
    """Holds a rank up, by sleep or work, as the seed and the rank say."""

    def __init__(self, kind: str, seed: int, rank: int, size: int) -> None:
        self._kind = kind
        self._chance = random.Random(f"{seed}/{rank}")
        self._late = seed % size == rank

    def perhaps(self) -> None:
        if self._kind == "none" or self._chance.random() < 0.4:
            return
        if self._kind == "one_late":
            if self._late:
                time.sleep(self._chance.uniform(0.0005, 0.006))
        elif self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0.0, 0.003))
        else:
            end = time.perf_counter() + self._chance.uniform(0.0, 0.0015)
            while time.perf_counter() < end:
                pass


class Session:
    """The communicators of one rank and its side channel."""

    def __init__(self, rank: int, size: int, store: Store, exact: bool) -> None:
        self.rank = rank
        self.size = size
        self.exact = exact
        self._store = store
        self._rounds = 0
        self._generation = 0
        self._open()

    def _open(self) -> None:
        self._generation += 1
        self.world = self.make("world")
        self.other = self.make("other")
        self.halves, self.half = self._halves(self.world)
        mirrored = self.world.split(list(reversed(range(self.size))), "mirrored")
        assert mirrored is not None
        self.mirrored = mirrored

    def _halves(self, comm: torchcomms.TorchComm) -> tuple[torchcomms.TorchComm, str]:
        """Odd ranks and even ranks apart; every rank makes both splits."""
        parts = [("even", list(range(0, self.size, 2))), ("odd", list(range(1, self.size, 2)))]
        mine: tuple[torchcomms.TorchComm, str] | None = None
        for name, ranks in parts:
            if ranks:
                half = comm.split(ranks, name)
                if half is not None:
                    mine = (half, name)
        assert mine is not None
        return mine

    def make(self, name: str) -> torchcomms.TorchComm:
        """A communicator of all ranks of the job."""
        label = f"{name}{self._generation}"
        return torchcomms.new_comm(
            "gloo",
            "cpu",
            name=label,
            store=PrefixStore(f"engine/{label}", self._store),
            timeout=OPERATION_LIMIT,
        )

    def place(self, comm: torchcomms.TorchComm) -> Place:
        return Place(comm.get_rank(), comm.get_size(), self.exact)

    def close(self) -> None:
        """Ends the communicators; together."""
        for comm in (self.mirrored, self.halves, self.other, self.world):
            comm.finalize()

    def reopen(self) -> None:
        """New communicators, after a case has failed on any rank."""
        for comm in (self.mirrored, self.halves, self.other, self.world):
            comm.abort()
        self._open()

    def tell(self, message: Any) -> list[Any]:
        """What every rank told, in rank order. Returns when all ranks have."""
        self._rounds += 1
        prefix = f"side/{self._rounds}/"
        self._store.set(prefix + str(self.rank), json.dumps(message))
        keys = [prefix + str(rank) for rank in range(self.size)]
        self._store.wait(keys, SIDE_LIMIT)
        return [json.loads(self._store.get(key)) for key in keys]
