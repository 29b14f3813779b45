"""What the self-test does: every operation, on tensors whose results are known.

Each check is run by all ranks together and raises where a result is wrong. Values are made and
compared on the CPU, so that nothing but the communicator is tried on a device. Must not know
processes or what is printed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

import torchcomms
from torchcomms import ReduceOp, TorchComm, objcol
from torchcomms._selftest import _members, _windows
from torchcomms._selftest._wrong import Wrong

_INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_MOVED_ONLY = (torch.float8_e4m3fn, torch.float8_e5m2)
_DTYPES = (*_FLOATS, *_INTEGERS, torch.bool, *_COMPLEX, *_MOVED_ONLY)
_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

_ROWS = 3
_COLUMNS = 5
# Elements of a large tensor; more than any transport moves in one piece.
_LARGE = 1 << 19
# How long a rank waits for one that does not come.
_SHORT = timedelta(milliseconds=300)
_NAMES_RANK_1 = re.compile(r"\b(?:ranks?|peers?) (?:\d+, )*1\b")


@dataclass(frozen=True)
class Check:
    """One thing to try, and the line of the report that it belongs to."""

    line: str
    name: str
    run: Callable[[], None]


@dataclass(frozen=True)
class _Case:
    """The operations of one communicator on one kind of tensor."""

    comm: TorchComm
    dtype: torch.dtype
    rows: int = _ROWS
    columns: int = _COLUMNS
    asynchronous: bool = False

    def value(self, rank: int, part: int = 0, rows: int | None = None) -> Tensor:
        """What rank `rank` brings, on the CPU: small numbers, so that results are exact."""
        rows = self.rows if rows is None else rows
        numbers = torch.arange(rows * self.columns) * (rank + 2) + 3 * part + rank
        if self.dtype == torch.bool:
            return (numbers % 3 == 0).view(rows, self.columns)
        return (numbers % 3 + 1).view(rows, self.columns).to(self.dtype)

    def mine(self, part: int = 0, rows: int | None = None) -> Tensor:
        return self.value(self.comm.get_rank(), part, rows).to(self.comm.get_device())

    def blank(self, rows: int | None = None) -> Tensor:
        shape = (self.rows if rows is None else rows, self.columns)
        return torch.empty(shape, dtype=self.dtype, device=self.comm.get_device())

    def call(self, operation: Callable[..., Any], *arguments: Any) -> None:
        work = operation(*arguments, async_op=self.asynchronous)
        if self.asynchronous:
            work.wait()

    @property
    def ranks(self) -> range:
        return range(self.comm.get_size())

    # ---- movement

    def broadcast(self) -> None:
        for root in self.ranks:
            tensor = self.mine()
            self.call(self.comm.broadcast, tensor, root)
            _same(tensor, self.value(root))

    def all_gather(self) -> None:
        outputs = [self.blank() for _ in self.ranks]
        self.call(self.comm.all_gather, outputs, self.mine())
        for rank, output in enumerate(outputs):
            _same(output, self.value(rank))

    def all_gather_v(self) -> None:
        outputs = [self.blank(1 + rank) for rank in self.ranks]
        self.call(self.comm.all_gather_v, outputs, self.mine(rows=1 + self.comm.get_rank()))
        for rank, output in enumerate(outputs):
            _same(output, self.value(rank, rows=1 + rank))

    def all_gather_single(self) -> None:
        output = self.blank(self.rows * len(self.ranks))
        self.call(self.comm.all_gather_single, output, self.mine())
        _same(output, torch.cat([self.value(rank) for rank in self.ranks]))

    def all_to_all(self) -> None:
        outputs = [self.blank() for _ in self.ranks]
        self.call(self.comm.all_to_all, outputs, [self.mine(part) for part in self.ranks])
        for rank, output in enumerate(outputs):
            _same(output, self.value(rank, self.comm.get_rank()))

    def all_to_all_single(self) -> None:
        inputs = torch.cat([self.value(self.comm.get_rank(), part) for part in self.ranks])
        output = self.blank(self.rows * len(self.ranks))
        self.call(self.comm.all_to_all_single, output, inputs.to(output.device))
        me = self.comm.get_rank()
        _same(output, torch.cat([self.value(rank, me) for rank in self.ranks]))

    def all_to_all_v_single(self) -> None:
        me = self.comm.get_rank()
        sent, received = [1 + part for part in self.ranks], [1 + me for _ in self.ranks]
        inputs = torch.cat([self.value(me, part, 1 + part) for part in self.ranks])
        output = self.blank(sum(received))
        where = output.device
        self.call(self.comm.all_to_all_v_single, output, inputs.to(where), received, sent)
        _same(output, torch.cat([self.value(rank, me, 1 + me) for rank in self.ranks]))

    def gather(self) -> None:
        for root in self.ranks:
            at_root = self.comm.get_rank() == root
            outputs = [self.blank() for _ in self.ranks] if at_root else []
            self.call(self.comm.gather, outputs, self.mine(), root)
            for rank, output in enumerate(outputs):
                _same(output, self.value(rank))

    def gather_single(self) -> None:
        root = self.ranks[-1]
        output = self.blank(self.rows * len(self.ranks))
        self.call(self.comm.gather_single, output, self.mine(), root)
        if self.comm.get_rank() == root:
            _same(output, torch.cat([self.value(rank) for rank in self.ranks]))

    def scatter(self) -> None:
        for root in self.ranks:
            at_root = self.comm.get_rank() == root
            output = self.blank()
            inputs = [self.mine(part) for part in self.ranks] if at_root else []
            self.call(self.comm.scatter, output, inputs, root)
            _same(output, self.value(root, self.comm.get_rank()))

    def send_recv(self) -> None:
        me, size = self.comm.get_rank(), len(self.ranks)
        if size == 1:
            return
        right, left = (me + 1) % size, (me - 1) % size
        output = self.blank()
        if me == 0:
            self.call(self.comm.send, self.mine(), right)
            self.call(self.comm.recv, output, left)
        else:
            self.call(self.comm.recv, output, left)
            self.call(self.comm.send, self.mine(), right)
        _same(output, self.value(left))

    def batch(self) -> None:
        size = len(self.ranks)
        if size == 1:
            return
        right, left = (self.comm.get_rank() + 1) % size, (self.comm.get_rank() - 1) % size
        output, batch = self.blank(), self.comm.batch_op_create()
        batch.send(self.mine(), right)
        batch.recv(output, left)
        batch.issue(async_op=True).wait()
        _same(output, self.value(left))

    # ---- reductions

    def op(self, name: str) -> ReduceOp:
        return ReduceOp.PREMUL_SUM(2.0) if name == "PREMUL_SUM" else getattr(ReduceOp, name)

    def all_reduce(self, op: str) -> None:
        tensor = self.mine()
        self.call(self.comm.all_reduce, tensor, self.op(op))
        _same(tensor, self.reduced(op))

    def reduce(self, op: str) -> None:
        for root in self.ranks:
            tensor = self.mine()
            self.call(self.comm.reduce, tensor, root, self.op(op))
            if self.comm.get_rank() == root:
                _same(tensor, self.reduced(op))

    def reduce_scatter(self, op: str) -> None:
        output = self.blank()
        self.call(self.comm.reduce_scatter, output, [self.mine(p) for p in self.ranks], self.op(op))
        _same(output, self.reduced(op, self.comm.get_rank()))

    def reduce_scatter_single(self, op: str) -> None:
        output = self.blank()
        inputs = torch.cat([self.value(self.comm.get_rank(), part) for part in self.ranks])
        self.call(self.comm.reduce_scatter_single, output, inputs.to(output.device), self.op(op))
        _same(output, self.reduced(op, self.comm.get_rank()))

    def reduced(self, op: str, part: int = 0) -> Tensor:
        """The right result, from all ranks' values, in a type that holds it exactly."""
        values = [self.value(rank, part).to(_wide(self.dtype)) for rank in self.ranks]
        if op == "PREMUL_SUM":
            values = [2 * value for value in values]
        result = values[0]
        for value in values[1:]:
            result = _COMBINE[op](result, value)
        if op == "AVG":
            rounding = "trunc" if self.dtype in _INTEGERS else None
            result = torch.div(result, len(values), rounding_mode=rounding)
        return result.to(self.dtype)


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_MOVES = (
    "broadcast",
    "all_gather",
    "all_gather_v",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_single",
    "gather",
    "gather_single",
    "scatter",
    "send_recv",
    "batch",
)
_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single")


def checks(comm: TorchComm, another: Callable[..., TorchComm]) -> Iterator[Check]:
    """All checks, in the order in which every rank runs them.

    Args:
        comm: the communicator that is tried.
        another: makes one that a check may break; collective.
    """
    for dtype in _DTYPES:
        case = _Case(comm, dtype)
        short = str(dtype).removeprefix("torch.")
        for move in _MOVES:
            yield Check(move, short, getattr(case, move))
        for reduction in _REDUCTIONS:
            for op in _OPS:
                if _reduced_here(dtype, op):
                    run = _bound(getattr(case, reduction), op)
                    yield Check(reduction, f"{short} {op}", run)
    for words, case in (
        ("async", _Case(comm, torch.float32, asynchronous=True)),
        ("large", _Case(comm, torch.float32, rows=_LARGE // _COLUMNS)),
        ("large async", _Case(comm, torch.float32, _LARGE // _COLUMNS, asynchronous=True)),
    ):
        for move in _MOVES:
            yield Check(move, words, getattr(case, move))
        for reduction in _REDUCTIONS:
            yield Check(reduction, words, _bound(getattr(case, reduction), "SUM"))
    yield Check("barrier", "", lambda: _none(comm.barrier()))
    yield Check("objects", "", lambda: _objects(comm))
    yield Check("split", "", lambda: _split(comm))
    if comm.get_device().type == "cpu":
        yield Check("window", "plain memory", lambda: _windows.plain(comm))
    yield Check("window", "the allocator's memory", lambda: _windows.allocated(comm))
    yield Check("window", "time-out", lambda: _windows.time_out(comm, another("signal")))
    yield Check(
        "reconfigure",
        "order and number",
        lambda: _members.members(comm, another("members", enable_reconfigure=True)),
    )
    yield Check("time-out", "names the rank", lambda: _time_out(comm, another("time-out")))
    yield Check("abort", "", lambda: _abort(comm, another("abort")))


def _bound(function: Callable[[str], None], op: str) -> Callable[[], None]:
    return lambda: function(op)


def _none(_: Any) -> None:
    pass


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _COMPLEX:
        return torch.complex128
    if dtype == torch.bool:
        return torch.bool
    return torch.float64 if dtype in _FLOATS else torch.int64


def _reduced_here(dtype: torch.dtype, op: str) -> bool:
    """The table of docs/reductions.md, less the sums of bool, which are or."""
    if dtype in _MOVED_ONLY:
        return False
    if dtype == torch.bool:
        return op in ("BAND", "BOR", "BXOR")
    if dtype in _INTEGERS:
        return op != "PREMUL_SUM"
    if dtype in _COMPLEX:
        return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    return op not in ("BAND", "BOR", "BXOR")


def _same(got: Tensor, expected: Tensor) -> None:
    found = got.detach().cpu()
    if found.dtype in _MOVED_ONLY:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    elif found.dtype == torch.complex32:
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    if found.is_floating_point() or found.is_complex():
        # averages over more than two ranks are rounded
        fits = torch.allclose(found.to(expected.dtype), expected, rtol=1e-2, atol=1e-3)
    else:
        fits = torch.equal(found, expected)
    if not fits:
        position = int((found != expected).flatten().to(torch.int8).argmax())
        raise Wrong(
            f"element {position} is {found.flatten()[position].item()}, expected "
            f"{expected.flatten()[position].item()}"
        )


def _objects(comm: TorchComm) -> None:
    got: list[Any] = [None] * comm.get_size()
    objcol.all_gather_object(comm, got, {"rank": comm.get_rank()})
    if got != [{"rank": rank} for rank in range(comm.get_size())]:
        raise Wrong(f"gathered {got}")


def _split(comm: TorchComm) -> None:
    order = list(reversed(range(comm.get_size())))
    part = comm.split(order, f"{comm.get_name()}/reversed")
    if part is None or part.get_rank() != order[comm.get_rank()]:
        raise Wrong(f"rank {comm.get_rank()} of a split in the order {order} is {part}")
    _Case(part, torch.float32).all_gather()
    part.finalize()
    outside = comm.split([0], f"{comm.get_name()}/first")
    if (outside is None) == (comm.get_rank() == 0):
        raise Wrong(f"rank {comm.get_rank()} of a split of rank 0 alone got {outside}")
    if outside is not None:
        outside.finalize()


def _time_out(comm: TorchComm, victim: TorchComm) -> None:
    """Rank 0 alone comes, and is told who did not."""
    try:
        if comm.get_size() > 1 and comm.get_rank() == 0:
            _wait_in_vain(victim)
    finally:
        comm.barrier()
        victim.abort()


def _wait_in_vain(victim: TorchComm) -> None:
    tensor = torch.ones(1).to(victim.get_device())
    try:
        work = victim.all_reduce(tensor, ReduceOp.SUM, async_op=True, timeout=_SHORT)
        work.wait_blocking()
    except torch.distributed.DistBackendError as error:
        # NCCL cannot say who is missing.
        if victim.get_backend() == "gloo" and not _NAMES_RANK_1.search(str(error)):
            raise Wrong(f"the error does not name rank 1: {error}") from error
    else:
        raise Wrong("an operation without the other ranks did not time out")


def _abort(comm: TorchComm, victim: TorchComm) -> None:
    victim.abort()
    try:
        victim.barrier()
    except torch.distributed.DistBackendError:
        pass
    else:
        raise Wrong("an aborted communicator ran an operation")
    if not victim.is_aborted():
        raise Wrong(f"after abort the communicator is {victim.state()}")
    comm.barrier()


def communicators(device: torch.device, store: Any) -> Callable[..., TorchComm]:
    """Makes communicators over all ranks of the test, each on a key space of its own."""
    backend = "gloo" if device.type == "cpu" else "nccl"
    numbers = itertools.count()

    def make(name: str, enable_reconfigure: bool = False) -> TorchComm:
        return torchcomms.new_comm(
            backend,
            device,
            abort_process_on_timeout_or_error=False,
            timeout=timedelta(seconds=15),
            store=PrefixStore(f"{next(numbers)}", store),
            name=f"selftest {name}",
            enable_reconfigure=enable_reconfigure,
        )

    return make
