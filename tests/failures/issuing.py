"""One call of each operation around a *pivot*: the rank that dies, stops or does not come.

Roots are chosen so that the others need the pivot. Must not know what goes wrong or when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

import torchcomms

SMALL = 8
# Elements of float32 in 32 MB.
LARGE = 8 << 20
POINTS = ("send", "recv", "batch")


@dataclass(frozen=True)
class Arguments:
    """What is called with what, on one rank. `count` elements in all parts together, about."""

    pivot: int
    count: int = SMALL
    dtype: torch.dtype = torch.float32
    op: torchcomms.ReduceOp = torchcomms.ReduceOp.SUM
    # overrides the root that the pivot asks for
    root: int | None = None
    timeout: timedelta | None = None


Works = list[torchcomms.TorchWork]


@dataclass
class Call:
    """A call that can be made again and again."""

    issue: Callable[[bool], Works]

    def run(self, asynchronous: bool) -> None:
        for work in self.issue(asynchronous):
            if asynchronous:
                work.wait()


class _Maker:
    def __init__(self, comm: torchcomms.TorchComm, a: Arguments) -> None:
        self.comm = comm
        self.a = a
        self.rank, self.size = comm.get_rank(), comm.get_size()
        self.more = {"timeout": a.timeout}
        # all data of the pivot comes from or goes to a root; a survivor is the other kind of root
        self.source = a.pivot if a.root is None else a.root
        self.sink = (a.pivot + 1) % self.size if a.root is None else a.root

    def new(self, count: int | None = None) -> Tensor:
        return torch.ones(self.a.count if count is None else count, dtype=self.a.dtype)

    def part(self) -> int:
        return max(1, self.a.count // self.size)

    def parts(self, uneven: bool = False) -> list[Tensor]:
        return [self.new(self.part() + (r if uneven else 0)) for r in range(self.size)]

    def one(self, call: Callable[..., torchcomms.TorchWork], *arguments: object) -> Call:
        return Call(lambda a: [call(*arguments, async_op=a, **self.more)])

    def barrier(self) -> Call:
        return self.one(self.comm.barrier)

    def broadcast(self) -> Call:
        return self.one(self.comm.broadcast, self.new(), self.source)

    def all_reduce(self) -> Call:
        return self.one(self.comm.all_reduce, self.new(), self.a.op)

    def reduce(self) -> Call:
        return self.one(self.comm.reduce, self.new(), self.sink, self.a.op)

    def all_gather(self) -> Call:
        return self.one(self.comm.all_gather, self.parts(), self.new(self.part()))

    def all_gather_v(self) -> Call:
        own = self.new(self.part() + self.rank)
        return self.one(self.comm.all_gather_v, self.parts(True), own)

    def all_gather_single(self) -> Call:
        output = self.new(self.part() * self.size)
        return self.one(self.comm.all_gather_single, output, self.new(self.part()))

    def reduce_scatter(self) -> Call:
        return self.one(self.comm.reduce_scatter, self.new(self.part()), self.parts(), self.a.op)

    def reduce_scatter_v(self) -> Call:
        own = self.new(self.part() + self.rank)
        return self.one(self.comm.reduce_scatter_v, own, self.parts(True), self.a.op)

    def reduce_scatter_single(self) -> Call:
        whole = self.new(self.part() * self.size)
        return self.one(self.comm.reduce_scatter_single, self.new(self.part()), whole, self.a.op)

    def all_to_all(self) -> Call:
        return self.one(self.comm.all_to_all, self.parts(), self.parts())

    def all_to_all_single(self) -> Call:
        whole = self.part() * self.size
        return self.one(self.comm.all_to_all_single, self.new(whole), self.new(whole))

    def all_to_all_v_single(self) -> Call:
        sends = [self.part() + self.rank + r for r in range(self.size)]
        return self.one(
            self.comm.all_to_all_v_single,
            self.new(sum(sends)),
            self.new(sum(sends)),
            sends,
            sends,
        )

    def scatter(self) -> Call:
        inputs = self.parts() if self.rank == self.source else []
        return self.one(self.comm.scatter, self.new(self.part()), inputs, self.source)

    def gather(self) -> Call:
        outputs = self.parts() if self.rank == self.sink else []
        return self.one(self.comm.gather, outputs, self.new(self.part()), self.sink)

    def gather_single(self) -> Call:
        output = self.new(self.part() * self.size)
        return self.one(self.comm.gather_single, output, self.new(self.part()), self.sink)

    def _with_all(self, mine: str, theirs: str) -> Call:
        """Everybody does one thing with the pivot, and the pivot the other with everybody."""
        if self.rank != self.a.pivot:
            return self.one(getattr(self.comm, mine), self.new(), self.a.pivot)
        tensors = {r: self.new() for r in range(self.size) if r != self.rank}

        def issue(_asynchronous: bool) -> Works:
            works = [
                getattr(self.comm, theirs)(tensor, r, async_op=True, **self.more)
                for r, tensor in tensors.items()
            ]
            for work in works:
                work.wait()
            return works

        return Call(issue)

    def send(self) -> Call:
        return self._with_all("send", "recv")

    def recv(self) -> Call:
        return self._with_all("recv", "send")

    def batch(self) -> Call:
        peers = [r for r in range(self.size) if r != self.rank]
        sent, received = self.parts(), self.parts()

        def issue(asynchronous: bool) -> Works:
            batch = self.comm.batch_op_create()
            for peer in peers:
                batch.recv(received[peer], peer)
                batch.send(sent[peer], peer)
            return [batch.issue(async_op=asynchronous, **self.more)]

        return Call(issue)


COLLECTIVES = (
    "barrier",
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_v",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_v",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_single",
    "scatter",
    "gather",
    "gather_single",
)
OPERATIONS = (*COLLECTIVES, *POINTS)


def make(operation: str, comm: torchcomms.TorchComm, arguments: Arguments) -> Call:
    """A call of the operation with buffers of its own."""
    call: Call = getattr(_Maker(comm, arguments), operation)()
    return call
