"""Runs each operation of a communicator and compares with the plain reference, in one `Case`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from reference import FACTOR, assert_reduced, assert_same, data
from torch import Tensor

import torchcomms

LAYOUTS = ("plain", "transposed", "strided", "offset")


@dataclass(frozen=True)
class Case:
    """What one run of every operation is done with. `shape` is 2-D."""

    dtype: torch.dtype = torch.float32
    shape: tuple[int, int] = (3, 5)
    layout: str = "plain"
    asynchronous: bool = False
    op: str = "SUM"
    seed: int = 1


def laid_out(values: Tensor, layout: str) -> Tensor:
    """A tensor of these values whose memory is arranged as `layout` says."""
    if layout == "transposed":
        base = torch.empty(values.shape[::-1], dtype=values.dtype).t()
    elif layout == "strided":
        base = torch.zeros((values.shape[0], values.shape[1] * 2), dtype=values.dtype)[:, ::2]
    elif layout == "offset":
        flat = torch.zeros(values.numel() + 3, dtype=values.dtype)
        base = flat[3:].view(values.shape)
    else:
        base = torch.empty_like(values)
    base.copy_(values)
    return base


def reduce_op(name: str) -> torchcomms.ReduceOp:
    if name == "PREMUL_SUM":
        return torchcomms.ReduceOp.PREMUL_SUM(FACTOR)
    return getattr(torchcomms.ReduceOp, name)


class Operations:
    """The operations of one communicator under one case; a method raises on a difference."""

    def __init__(self, comm: torchcomms.TorchComm, case: Case) -> None:
        self.comm = comm
        self.case = case
        self.rank = comm.get_rank()
        self.size = comm.get_size()

    def input(self, rank: int, part: int = 0, rows: int | None = None) -> Tensor:
        shape = self.case.shape if rows is None else (rows, self.case.shape[1])
        return data(self.case.seed + 31 * part, rank, shape, self.case.dtype)

    def mine(self, part: int = 0, rows: int | None = None) -> Tensor:
        return laid_out(self.input(self.rank, part, rows), self.case.layout)

    def blank(self, rows: int | None = None) -> Tensor:
        """An output filled with other values than the right ones."""
        shape = self.case.shape if rows is None else (rows, self.case.shape[1])
        return laid_out(data(999, 77, shape, self.case.dtype), self.case.layout)

    def finish(self, work: torchcomms.TorchWork) -> None:
        if self.case.asynchronous:
            work.wait()
        assert work.is_completed()
        assert work.status == torchcomms.WorkStatus.COMPLETED

    def call(self, operation: Callable[..., torchcomms.TorchWork], *arguments: Any) -> None:
        self.finish(operation(*arguments, async_op=self.case.asynchronous))

    def what(self, operation: str) -> str:
        return f"{operation} {self.case} rank {self.rank} of {self.size}"

    # ---- movement

    def broadcast(self) -> None:
        for root in range(self.size):
            tensor = self.mine()
            self.call(self.comm.broadcast, tensor, root)
            assert_same(tensor, self.input(root), self.what(f"broadcast from {root}"))

    def all_gather(self) -> None:
        outputs = [self.blank() for _ in range(self.size)]
        own = self.mine()
        self.call(self.comm.all_gather, outputs, own)
        for rank, output in enumerate(outputs):
            assert_same(output, self.input(rank), self.what("all_gather"))
        assert_same(own, self.input(self.rank), self.what("all_gather input"))

    def all_gather_v(self) -> None:
        outputs = [self.blank(rows=r) for r in range(self.size)]
        self.call(self.comm.all_gather_v, outputs, self.mine(rows=self.rank))
        for rank, output in enumerate(outputs):
            assert_same(output, self.input(rank, rows=rank), self.what("all_gather_v"))

    def all_gather_single(self) -> None:
        output = self.blank(rows=self.case.shape[0] * self.size)
        self.call(self.comm.all_gather_single, output, self.mine())
        expected = torch.cat([self.input(r) for r in range(self.size)])
        assert_same(output, expected, self.what("all_gather_single"))

    def all_to_all(self) -> None:
        outputs = [self.blank() for _ in range(self.size)]
        self.call(self.comm.all_to_all, outputs, [self.mine(p) for p in range(self.size)])
        for rank, output in enumerate(outputs):
            assert_same(output, self.input(rank, self.rank), self.what("all_to_all"))

    def all_to_all_uneven(self) -> None:
        # rank r sends r + p rows to rank p
        outputs = [self.blank(rows=r + self.rank) for r in range(self.size)]
        inputs = [self.mine(p, rows=self.rank + p) for p in range(self.size)]
        self.call(self.comm.all_to_all, outputs, inputs)
        for rank, output in enumerate(outputs):
            expected = self.input(rank, self.rank, rows=rank + self.rank)
            assert_same(output, expected, self.what("all_to_all uneven"))

    def all_to_all_single(self) -> None:
        rows = self.case.shape[0]
        output = self.blank(rows=rows * self.size)
        self.call(self.comm.all_to_all_single, output, self.mine(rows=rows * self.size))
        parts = [
            self.input(r, rows=rows * self.size).split([rows] * self.size) for r in range(self.size)
        ]
        expected = torch.cat([parts[r][self.rank] for r in range(self.size)])
        assert_same(output, expected, self.what("all_to_all_single"))

    def all_to_all_v_single(self) -> None:
        sends = [[r + p for p in range(self.size)] for r in range(self.size)]
        receives = [sends[r][self.rank] for r in range(self.size)]
        mine = sends[self.rank]
        output = self.blank(rows=sum(receives))
        self.call(self.comm.all_to_all_v_single, output, self.mine(rows=sum(mine)), receives, mine)
        parts = [self.input(r, rows=sum(sends[r])).split(sends[r]) for r in range(self.size)]
        expected = torch.cat([parts[r][self.rank] for r in range(self.size)])
        assert_same(output, expected, self.what("all_to_all_v_single"))

    def scatter(self) -> None:
        for root in range(self.size):
            output = self.blank()
            inputs = [self.mine(p) for p in range(self.size)] if self.rank == root else []
            self.call(self.comm.scatter, output, inputs, root)
            assert_same(output, self.input(root, self.rank), self.what(f"scatter from {root}"))

    def gather(self) -> None:
        for root in range(self.size):
            outputs = [self.blank() for _ in range(self.size)] if self.rank == root else []
            self.call(self.comm.gather, outputs, self.mine(), root)
            for rank, output in enumerate(outputs):
                assert_same(output, self.input(rank), self.what(f"gather to {root}"))

    def gather_single(self) -> None:
        for root in range(self.size):
            output = self.blank(rows=self.case.shape[0] * self.size)
            before = output.clone()
            self.call(self.comm.gather_single, output, self.mine(), root)
            expected = torch.cat([self.input(r) for r in range(self.size)])
            assert_same(
                output,
                expected if self.rank == root else before,
                self.what(f"gather_single to {root}"),
            )

    def send_and_recv(self) -> None:
        """Around the ring; the last rank receives first, so synchronous calls do not block."""
        if self.size == 1:
            return
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        received = self.blank()
        if self.rank == self.size - 1:
            self.call(self.comm.recv, received, before)
            self.call(self.comm.send, self.mine(), after)
        else:
            self.call(self.comm.send, self.mine(), after)
            self.call(self.comm.recv, received, before)
        assert_same(received, self.input(before), self.what("recv"))

    def batch(self) -> None:
        """Everybody to everybody, itself included, in an order of its own on each rank."""
        outputs = [self.blank() for _ in range(self.size)]
        batch = self.comm.batch_op_create()
        for step in range(self.size):
            peer = (self.rank + step) % self.size
            batch.recv(outputs[peer], peer)
        for peer in range(self.size):
            batch.send(self.mine(peer), peer)
        self.finish(batch.issue(async_op=self.case.asynchronous))
        for rank, output in enumerate(outputs):
            assert_same(output, self.input(rank, self.rank), self.what("batch"))

    def barrier(self) -> None:
        self.call(self.comm.barrier)

    # ---- reductions

    def all_reduce(self) -> None:
        tensor = self.mine()
        self.call(self.comm.all_reduce, tensor, reduce_op(self.case.op))
        inputs = [self.input(r) for r in range(self.size)]
        assert_reduced(tensor, inputs, self.case.op, self.what("all_reduce"))

    def reduce(self) -> None:
        inputs = [self.input(r) for r in range(self.size)]
        for root in range(self.size):
            tensor = self.mine()
            self.call(self.comm.reduce, tensor, root, reduce_op(self.case.op))
            if self.rank == root:
                assert_reduced(tensor, inputs, self.case.op, self.what(f"reduce to {root}"))
            else:
                assert_same(tensor, inputs[self.rank], self.what(f"reduce to {root}, off root"))

    def reduce_scatter(self) -> None:
        output = self.blank()
        parts = [self.mine(p) for p in range(self.size)]
        self.call(self.comm.reduce_scatter, output, parts, reduce_op(self.case.op))
        inputs = [self.input(r, self.rank) for r in range(self.size)]
        assert_reduced(output, inputs, self.case.op, self.what("reduce_scatter"))

    def reduce_scatter_v(self) -> None:
        output = self.blank(rows=self.rank + 1)
        parts = [self.mine(p, rows=p + 1) for p in range(self.size)]
        self.call(self.comm.reduce_scatter_v, output, parts, reduce_op(self.case.op))
        inputs = [self.input(r, self.rank, rows=self.rank + 1) for r in range(self.size)]
        assert_reduced(output, inputs, self.case.op, self.what("reduce_scatter_v"))

    def reduce_scatter_single(self) -> None:
        rows = self.case.shape[0]
        output = self.blank()
        self.call(
            self.comm.reduce_scatter_single,
            output,
            self.mine(rows=rows * self.size),
            reduce_op(self.case.op),
        )
        inputs = [
            self.input(r, rows=rows * self.size)[self.rank * rows : (self.rank + 1) * rows]
            for r in range(self.size)
        ]
        assert_reduced(output, inputs, self.case.op, self.what("reduce_scatter_single"))

    def movements(self) -> None:
        self.broadcast()
        self.all_gather()
        self.all_gather_v()
        self.all_gather_single()
        self.all_to_all()
        self.all_to_all_uneven()
        self.all_to_all_single()
        self.all_to_all_v_single()
        self.scatter()
        self.gather()
        self.gather_single()
        self.send_and_recv()
        self.batch()
        self.barrier()

    def reductions(self) -> None:
        self.all_reduce()
        self.reduce()
        self.reduce_scatter()
        self.reduce_scatter_v()
        self.reduce_scatter_single()
