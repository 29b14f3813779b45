"""One rank of a system in Python: obeys the bench over a Unix socket, and sleeps in between.

    python -m torchcomms._bench._worker SYSTEM SOCKET RANK SIZE FOLDER CORES

The same lines and answers as tests/bench/loops.c. Joins the ranks through files in FOLDER, so that
no port is taken. Does not decide what is measured. Must not know what becomes of its times.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed import config

import torchcomms
from torchcomms._bench._figures import ELEMENT_SIZE, OPERATIONS, Operation

TIMEOUT = timedelta(seconds=60)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Parts of the pattern: small enough for exact sums in bf16.
PERIOD = 29
SUMMANDS = 8


@dataclass
class Buffers:
    """Tensors of one request. In place where the interface works in place."""

    input: Tensor
    output: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]


Call = Callable[[Buffers, int], Any]


class Api(Protocol):
    """The operations of a system, each of which takes buffers and a root."""

    calls: dict[str, Call]

    def close(self) -> None:
        """Leaves the ranks."""


class CommApi:
    """TorchComm objects."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        store = FileStore(str(folder / "comm"), size)
        comm = torchcomms.new_comm("gloo", "cpu", timeout=TIMEOUT, store=store, name="bench")
        self._comm = comm
        total = torchcomms.ReduceOp.SUM
        other = 1 - rank

        def send_recv(b: Buffers, root: int) -> None:
            if rank == 0:
                comm.send(b.input, other)
                comm.recv(b.output, other)
            elif rank == 1:
                comm.recv(b.output, other)
                comm.send(b.input, other)

        self.calls: dict[str, Call] = {
            "all_reduce": lambda b, root: comm.all_reduce(b.output, total),
            "all_reduce_async": lambda b, root: comm.all_reduce(b.output, total, True).wait(),
            "reduce_scatter": lambda b, root: comm.reduce_scatter_single(b.output, b.input, total),
            "all_gather": lambda b, root: comm.all_gather_single(b.output, b.input),
            "all_to_all": lambda b, root: comm.all_to_all_single(b.output, b.input),
            "broadcast": lambda b, root: comm.broadcast(b.output, root),
            "reduce": lambda b, root: comm.reduce(b.output, root, total),
            "gather": lambda b, root: comm.gather(b.outputs if rank == root else [], b.input, root),
            "scatter": lambda b, root: comm.scatter(
                b.output, b.inputs if rank == root else [], root
            ),
            "barrier": lambda b, root: comm.barrier(),
            "send_recv": send_recv,
        }

    def close(self) -> None:
        """Leaves the ranks."""
        self._comm.finalize()


class DistApi:
    """torch.distributed, with the engine or stock gloo behind it."""

    def __init__(self, ours: bool, rank: int, size: int, folder: Path) -> None:
        config.use_torchcomms = ours
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'world'}",
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
        )
        served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
        wanted = {"ferrocomm" if ours else "torch"}
        if served != wanted:
            raise RuntimeError(f"the group is served by {served}, expected {wanted}")
        other = 1 - rank

        def send_recv(b: Buffers, root: int) -> None:
            if rank == 0:
                dist.send(b.input, other)
                dist.recv(b.output, other)
            elif rank == 1:
                dist.recv(b.output, other)
                dist.send(b.input, other)

        def wait(work: Any) -> None:
            work.wait()

        self.calls: dict[str, Call] = {
            "all_reduce": lambda b, root: dist.all_reduce(b.output),
            "all_reduce_async": lambda b, root: wait(dist.all_reduce(b.output, async_op=True)),
            "reduce_scatter": lambda b, root: dist.reduce_scatter_tensor(b.output, b.input),
            "all_gather": lambda b, root: dist.all_gather_into_tensor(b.output, b.input),
            "all_to_all": lambda b, root: dist.all_to_all_single(b.output, b.input),
            "broadcast": lambda b, root: dist.broadcast(b.output, root),
            "reduce": lambda b, root: dist.reduce(b.output, root),
            "gather": lambda b, root: dist.gather(
                b.input, b.outputs if rank == root else None, root
            ),
            "scatter": lambda b, root: dist.scatter(
                b.output, b.inputs if rank == root else None, root
            ),
            "barrier": lambda b, root: dist.barrier(),
            "send_recv": send_recv,
        }

    def close(self) -> None:
        """Leaves the ranks."""
        dist.destroy_process_group()


@dataclass
class Rank:
    """This process's place and system."""

    api: Api
    rank: int
    size: int

    def obey(self, line: str) -> str:
        """The answer to one line of the bench."""
        verb, name, size, dtype, *numbers = line.split()
        operation = OPERATIONS[name]
        if verb == "check":
            return f"ok {self.check(operation, int(size), dtype)}"
        warmup, iterations = map(int, numbers)
        return f"ok {self.measure(operation, int(size), dtype, warmup, iterations)}"

    def buffers(self, operation: Operation, size: int, dtype: str) -> Buffers:
        """Zeros, written once so that no page is missing."""
        whole = size // ELEMENT_SIZE[dtype]
        part = whole // self.size
        from_parts = operation.name in ("reduce_scatter", "scatter", "all_to_all")
        to_parts = operation.name in ("all_gather", "gather", "all_to_all")
        divided = operation.divided
        given = torch.empty(whole if from_parts or not divided else part, dtype=DTYPES[dtype])
        taken = torch.empty(whole if to_parts or not divided else part, dtype=DTYPES[dtype])
        given.zero_()
        taken.zero_()
        return Buffers(
            given,
            taken,
            list(torch.split(given, part)) if from_parts and part else [],
            list(torch.split(taken, part)) if to_parts and part else [],
        )

    def measure(
        self, operation: Operation, size: int, dtype: str, warmup: int, iterations: int
    ) -> int:
        """Nanoseconds of all iterations. The root goes round: nobody can run ahead."""
        buffers = self.buffers(operation, size, dtype)
        call = self.api.calls[operation.name]
        ranks = self.size
        for i in range(warmup):
            call(buffers, i % ranks)
        self.api.calls["barrier"](buffers, 0)
        start = time.perf_counter_ns()
        for i in range(iterations):
            call(buffers, i % ranks)
        return time.perf_counter_ns() - start

    def check(self, operation: Operation, size: int, dtype: str) -> int:
        """Elements that are not what they should be, after one call with a known pattern."""
        root = 1 % self.size
        buffers = self.buffers(operation, size, dtype)
        give = self.summand if operation.reduces else self.moved
        buffers.input.copy_(give(self.rank, 0, buffers.input.numel()))
        in_place = operation.name in ("all_reduce", "all_reduce_async", "reduce") or (
            operation.name == "broadcast" and self.rank == root
        )
        if in_place:
            buffers.output.copy_(buffers.input)
        else:
            buffers.output.fill_(-1)
        self.api.calls[operation.name](buffers, root)
        if not self.receives(operation, root):
            return 0
        wanted = self.expected(operation, root, buffers.output.numel())
        return int((buffers.output.float() != wanted).sum().item())

    def receives(self, operation: Operation, root: int) -> bool:
        """Whether this rank's output has a meaning."""
        if operation.name in ("reduce", "gather"):
            return self.rank == root
        return operation.has_size and (operation.name != "send_recv" or self.rank < 2)

    def expected(self, operation: Operation, root: int, count: int) -> Tensor:
        """The output, as float32."""
        name = operation.name
        mine = self.rank * count
        if operation.reduces:
            start = mine if operation.divided else 0
            total = torch.zeros(count)
            for rank in range(self.size):
                total += self.summand(rank, start, count)
            return total
        if name in ("all_gather", "gather", "all_to_all"):
            part = count // self.size
            start = self.rank * part if name == "all_to_all" else 0
            return torch.cat([self.moved(rank, start, part) for rank in range(self.size)])
        if name == "send_recv":
            return self.moved(1 - self.rank, 0, count)
        return self.moved(root, mine if name == "scatter" else 0, count)

    @staticmethod
    def moved(rank: int, start: int, count: int) -> Tensor:
        """What a rank gives from an index on, in an operation that moves."""
        return (torch.arange(start, start + count) % PERIOD + PERIOD * (rank % 8)).float()

    @staticmethod
    def summand(rank: int, start: int, count: int) -> Tensor:
        """What a rank gives from an index on, in an operation that reduces."""
        return (torch.arange(start, start + count) % SUMMANDS + rank % 8).float()


def open_api(system: str, rank: int, size: int, folder: Path) -> Api:
    """Joins the ranks as the system does."""
    if system == "comm":
        return CommApi(rank, size, folder)
    return DistApi(system != "gloo", rank, size, folder)


def main() -> int:
    """One rank; returns the exit code."""
    system, path, rank, size, folder, cores = sys.argv[1:]
    if cores != "-":
        os.sched_setaffinity(0, {int(cores.split(",")[int(rank)])})
    torch.set_num_threads(1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        lines = connection.makefile("r")

        def say(text: str) -> None:
            connection.sendall(f"{' '.join(text.split())}\n".encode())

        try:
            me = Rank(open_api(system, int(rank), int(size), Path(folder)), int(rank), int(size))
        except Exception as error:
            say(f"error {type(error).__name__}: {error}")
            return 1
        say(f"hello {rank}")
        for line in lines:
            if line.strip() == "quit":
                break
            try:
                say(me.obey(line))
            except Exception as error:
                say(f"error {type(error).__name__}: {error}")
        me.api.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
