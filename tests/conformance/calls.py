"""One call of each operation: buffers made, issued, checked against the reference.

A `Prepared` call holds its buffers, so that several can be in flight. Must not know in what mode or
on which of several communicators it is issued.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from buffers import Buffer
from elements import FACTOR, Bytes, Reduction, compare, draw
from factors import OPERATIONS
from torch import Tensor

import torchcomms

# The input of nobody: what outputs hold before.
_NOBODY = 77


@dataclass(frozen=True)
class Request:
    """What is called with what. `count` elements per part."""

    operation: str
    dtype: str
    count: int
    op: str = "SUM"
    input_layout: str = "plain"
    output_layout: str = "plain"
    shared: bool = False
    root: str = "first"
    lengths: str = "even"
    values: str = "usual"
    salt: int = 1


@dataclass(frozen=True)
class Place:
    """A rank of a communicator. `exact`: reductions are in rank order there."""

    rank: int
    size: int
    exact: bool


@dataclass
class Result:
    """Elements to look at when the call is done."""

    name: str
    read: Callable[[], Bytes]
    wanted: Bytes | Reduction


Issue = Callable[[torchcomms.TorchComm, bool], list[torchcomms.TorchWork]]


def reduce_op(name: str) -> torchcomms.ReduceOp:
    if name == "PREMUL_SUM":
        return torchcomms.ReduceOp.PREMUL_SUM(FACTOR)
    op: torchcomms.ReduceOp = getattr(torchcomms.ReduceOp, name)
    return op


@dataclass
class Prepared:
    """A call with its buffers."""

    request: Request
    place: Place
    results: list[Result] = field(default_factory=list)
    buffers: list[tuple[str, Buffer]] = field(default_factory=list)
    issue: Issue = lambda _comm, _asynchronous: []
    # outputs that all ranks have alike, for comparing their bits across ranks
    common: list[Buffer] = field(default_factory=list)

    def check(self) -> None:
        """Raises `Difference`."""
        label = f"{self.request.operation} rank {self.place.rank} of {self.place.size}"
        for result in self.results:
            compare(result.read(), result.wanted, f"{label}, {result.name}")
        for name, buffer in self.buffers:
            buffer.check_guards(f"{label}, {name}")

    def digest(self) -> int:
        """Of what all ranks must have alike."""
        total = 0
        for buffer in self.common:
            total = zlib.crc32(buffer.read().tobytes(), total)
        return total

    # ---- what the operations below are made of

    def input(self, rank: int, part: int = 0, count: int | None = None) -> Bytes:
        r = self.request
        n = r.count if count is None else count
        return draw(r.dtype, r.values, r.salt, rank, part, n)

    def blank(self, count: int) -> Bytes:
        return draw(self.request.dtype, "usual", self.request.salt, _NOBODY, 0, count)

    def keep(self, name: str, content: Bytes, layout: str, rows: int | None = None) -> Buffer:
        buffer = Buffer(content, self.request.dtype, layout, rows)
        self.buffers.append((name, buffer))
        return buffer

    def reading(self, name: str, content: Bytes, rows: int | None = None) -> Buffer:
        """An input, which must not change."""
        buffer = self.keep(name, content, self.request.input_layout, rows)
        self.expect(name, buffer.read, content)
        return buffer

    def writing(self, name: str, count: int, rows: int | None = None) -> Buffer:
        return self.keep(name, self.blank(count), self.request.output_layout, rows)

    def expect(self, name: str, read: Callable[[], Bytes], wanted: Bytes | Reduction) -> None:
        self.results.append(Result(name, read, wanted))

    def reduction(self, part: int = 0, count: int | None = None) -> Reduction:
        inputs = [self.input(rank, part, count) for rank in range(self.place.size)]
        return self.reduction_of(inputs)

    def reduction_of(self, inputs: list[Bytes]) -> Reduction:
        # a + b commutes, so two ranks have no order to differ in
        exact = self.place.exact or (self.place.size <= 2 and self.request.op not in ("MIN", "MAX"))
        return Reduction(inputs, self.request.op, self.request.dtype, exact)

    def root(self) -> int:
        return {"first": 0, "middle": self.place.size // 2}.get(
            self.request.root, self.place.size - 1
        )

    def length(self, rank: int) -> int:
        """Elements of the part of `rank`, where each rank has one part."""
        count, size = self.request.count, self.place.size
        if self.request.lengths == "uneven":
            return count * (rank + 1) // size + rank
        if self.request.lengths == "gaps":
            return 0 if rank % 2 == 0 else count + rank
        return count

    def length_between(self, sender: int, receiver: int) -> int:
        """Elements that `sender` has for `receiver`."""
        count, size = self.request.count, self.place.size
        if self.request.lengths == "uneven":
            return (
                count * ((sender * 3 + receiver * 5) % size + 1) // size + (sender + receiver) % 3
            )
        if self.request.lengths == "gaps":
            return 0 if (sender + 2 * receiver) % 3 == 0 else count + sender
        return count


def prepare(request: Request, place: Place) -> Prepared:
    """The buffers of one rank's call of `request`."""
    prepared = Prepared(request, place)
    _MAKERS[request.operation](prepared)
    return prepared


def _split(buffer: Buffer, counts: list[int], part: int) -> Callable[[], Bytes]:
    start = sum(counts[:part])
    return lambda: buffer.read()[start : start + counts[part]]


def _joined(parts: list[Bytes]) -> Bytes:
    return np.concatenate(parts)


# ---- one tensor


def _all_reduce(p: Prepared) -> None:
    tensor = p.keep("tensor", p.input(p.place.rank), p.request.input_layout)
    p.expect("tensor", tensor.read, p.reduction())
    p.common = [tensor]
    op = reduce_op(p.request.op)
    p.issue = lambda comm, a: [comm.all_reduce(tensor.tensor, op, async_op=a)]


def _reduce(p: Prepared) -> None:
    root = p.root()
    own = p.input(p.place.rank)
    tensor = p.keep("tensor", own, p.request.input_layout)
    p.expect("tensor", tensor.read, p.reduction() if p.place.rank == root else own)
    op = reduce_op(p.request.op)
    p.issue = lambda comm, a: [comm.reduce(tensor.tensor, root, op, async_op=a)]


def _broadcast(p: Prepared) -> None:
    root = p.root()
    tensor = p.keep("tensor", p.input(p.place.rank), p.request.input_layout)
    p.expect("tensor", tensor.read, p.input(root))
    p.common = [tensor]
    p.issue = lambda comm, a: [comm.broadcast(tensor.tensor, root, async_op=a)]


# ---- lists


def _gathered_list(p: Prepared, lengths: list[int]) -> tuple[list[Buffer], Buffer]:
    """Outputs and own input; when shared the own output is the input."""
    outputs = [p.writing(f"output {r}", n) for r, n in enumerate(lengths)]
    rank = p.place.rank
    content = p.input(rank, count=lengths[rank])
    if p.request.shared:
        own = outputs[rank] = p.keep("own", content, p.request.output_layout)
    else:
        own = p.reading("input", content)
    for r, (output, n) in enumerate(zip(outputs, lengths, strict=True)):
        p.expect(f"output {r}", output.read, p.input(r, count=n))
    return outputs, own


def _all_gather(p: Prepared) -> None:
    lengths = [p.length(r) for r in range(p.place.size)]
    outputs, own = _gathered_list(p, lengths)
    p.common = outputs
    tensors = [output.tensor for output in outputs]
    uneven = p.request.operation == "all_gather_v"
    p.issue = lambda comm, a: [
        (comm.all_gather_v if uneven else comm.all_gather)(tensors, own.tensor, async_op=a)
    ]


def _gather(p: Prepared) -> None:
    root = p.root()
    if p.place.rank == root:
        outputs, own = _gathered_list(p, [p.request.count] * p.place.size)
        tensors = [output.tensor for output in outputs]
    else:
        own = p.reading("input", p.input(p.place.rank))
        tensors = []
    p.issue = lambda comm, a: [comm.gather(tensors, own.tensor, root, async_op=a)]


def _scatter(p: Prepared) -> None:
    root, size, rank = p.root(), p.place.size, p.place.rank
    at_root = rank == root
    if at_root:
        inputs = [p.reading(f"input {part}", p.input(root, part)) for part in range(size)]
    else:
        inputs = []
    tensors = [buffer.tensor for buffer in inputs]
    output = inputs[rank] if at_root and p.request.shared else p.writing("output", p.request.count)
    p.expect("output", output.read, p.input(root, rank))
    p.issue = lambda comm, a: [comm.scatter(output.tensor, tensors, root, async_op=a)]


def _reduce_scatter(p: Prepared) -> None:
    size, rank = p.place.size, p.place.rank
    lengths = [p.length(r) for r in range(size)]
    wanted = p.reduction(rank, lengths[rank])
    inputs = []
    for part, n in enumerate(lengths):
        content = p.input(rank, part, n)
        if p.request.shared and part == rank:
            inputs.append(p.keep("own part", content, p.request.input_layout))
        else:
            inputs.append(p.reading(f"input {part}", content))
    output = inputs[rank] if p.request.shared else p.writing("output", lengths[rank])
    p.expect("output", output.read, wanted)
    op = reduce_op(p.request.op)
    tensors = [buffer.tensor for buffer in inputs]
    uneven = p.request.operation == "reduce_scatter_v"
    p.issue = lambda comm, a: [
        (comm.reduce_scatter_v if uneven else comm.reduce_scatter)(
            output.tensor, tensors, op, async_op=a
        )
    ]


def _all_to_all(p: Prepared) -> None:
    size, rank = p.place.size, p.place.rank
    inputs = [
        p.reading(f"input {r}", p.input(rank, r, p.length_between(rank, r))) for r in range(size)
    ]
    outputs = [p.writing(f"output {r}", p.length_between(r, rank)) for r in range(size)]
    for r, output in enumerate(outputs):
        p.expect(f"output {r}", output.read, p.input(r, rank, p.length_between(r, rank)))
    sent = [buffer.tensor for buffer in inputs]
    received = [buffer.tensor for buffer in outputs]
    p.issue = lambda comm, a: [comm.all_to_all(received, sent, async_op=a)]


# ---- one tensor of several parts


def _all_gather_single(p: Prepared) -> None:
    size, rank, count = p.place.size, p.place.rank, p.request.count
    own = p.input(rank)
    content = p.blank(size * count)
    if p.request.shared:
        content[rank * count : (rank + 1) * count] = own
    output = p.keep("output", content, p.request.output_layout, size)
    tensor = (
        _part(output, rank, size, count) if p.request.shared else p.reading("input", own).tensor
    )
    p.expect("output", output.read, _joined([p.input(r) for r in range(size)]))
    p.common = [output]
    p.issue = lambda comm, a: [comm.all_gather_single(output.tensor, tensor, async_op=a)]


def _part(buffer: Buffer, part: int, size: int, count: int) -> Tensor:
    """The tensor of one of `size` parts."""
    tensor = buffer.tensor
    if tensor.dim() == 2 and tensor.shape[0] == size:
        return tensor[part]
    return tensor[part * count : (part + 1) * count]


def _gather_single(p: Prepared) -> None:
    size, rank, count, root = p.place.size, p.place.rank, p.request.count, p.root()
    own = p.input(rank)
    content = p.blank(size * count)
    shared = p.request.shared and rank == root
    if shared:
        content[rank * count : (rank + 1) * count] = own
    output = p.keep("output", content, p.request.output_layout, size)
    tensor = _part(output, rank, size, count) if shared else p.reading("input", own).tensor
    wanted = _joined([p.input(r) for r in range(size)]) if rank == root else content
    p.expect("output", output.read, wanted)
    p.issue = lambda comm, a: [comm.gather_single(output.tensor, tensor, root, async_op=a)]


def _reduce_scatter_single(p: Prepared) -> None:
    size, rank, count = p.place.size, p.place.rank, p.request.count
    counts = [count] * size
    parts = [[p.input(r, part) for part in range(size)] for r in range(size)]
    content = _joined(parts[rank])
    wanted = p.reduction_of([row[rank] for row in parts])
    whole = p.keep("input", content, p.request.input_layout, size)
    for part in range(size):
        if part != rank or not p.request.shared:
            p.expect(f"input {part}", _split(whole, counts, part), parts[rank][part])
    if p.request.shared:
        tensor = _part(whole, rank, size, count)
        p.expect("output", _split(whole, counts, rank), wanted)
    else:
        output = p.writing("output", count)
        tensor = output.tensor
        p.expect("output", output.read, wanted)
    op = reduce_op(p.request.op)
    p.issue = lambda comm, a: [comm.reduce_scatter_single(tensor, whole.tensor, op, async_op=a)]


def _all_to_all_single(p: Prepared) -> None:
    size, rank = p.place.size, p.place.rank
    whole = p.reading("input", _joined([p.input(rank, part) for part in range(size)]), size)
    output = p.writing("output", size * p.request.count, size)
    p.expect("output", output.read, _joined([p.input(r, rank) for r in range(size)]))
    p.issue = lambda comm, a: [comm.all_to_all_single(output.tensor, whole.tensor, async_op=a)]


def _all_to_all_v_single(p: Prepared) -> None:
    size, rank = p.place.size, p.place.rank
    # rows of several elements where the layout has two dimensions
    turned = "transposed" in (p.request.input_layout, p.request.output_layout)
    columns = 3 if turned else 1
    sends = [p.length_between(rank, r) // columns for r in range(size)]
    receives = [p.length_between(r, rank) // columns for r in range(size)]
    whole = p.reading(
        "input",
        _joined([p.input(rank, r, n * columns) for r, n in enumerate(sends)]),
        sum(sends) or None,
    )
    output = p.writing("output", sum(receives) * columns, sum(receives) or None)
    p.expect(
        "output",
        output.read,
        _joined([p.input(r, rank, n * columns) for r, n in enumerate(receives)]),
    )
    to, given = _in_rows(output, columns), _in_rows(whole, columns)
    p.issue = lambda comm, a: [comm.all_to_all_v_single(to, given, receives, sends, async_op=a)]


def _in_rows(buffer: Buffer, columns: int) -> Tensor:
    tensor = buffer.tensor
    if tensor.dim() == 2 or columns == 1:
        return tensor
    return tensor.as_strided(
        (len(tensor) // columns, columns), (columns * tensor.stride(0), tensor.stride(0))
    )


# ---- point to point


def _send_recv(p: Prepared) -> None:
    """Around rings of a step drawn from the salt; one rank of each ring receives first."""
    size, rank = p.place.size, p.place.rank
    step = 1 + p.request.salt % (size - 1) if size > 1 else 0
    after, before = (rank + step) % size, (rank - step) % size
    sent = p.reading("sent", p.input(rank))
    received = p.writing("received", p.request.count)
    p.expect("received", received.read, p.input(before))
    alone = size == 1
    receives_first = alone or rank < math.gcd(step, size)

    def issue(comm: torchcomms.TorchComm, a: bool) -> list[torchcomms.TorchWork]:
        # a rank that waits for what it sends to itself waits for ever
        a = a or alone
        if receives_first:
            return [
                comm.recv(received.tensor, before, async_op=a),
                comm.send(sent.tensor, after, async_op=a),
            ]
        return [
            comm.send(sent.tensor, after, async_op=a),
            comm.recv(received.tensor, before, async_op=a),
        ]

    p.issue = issue


def _batch(p: Prepared) -> None:
    """Everybody to everybody, itself included, in an order of its own on each rank."""
    size, rank = p.place.size, p.place.rank
    inputs = [
        p.reading(f"sent {r}", p.input(rank, r, p.length_between(rank, r))) for r in range(size)
    ]
    outputs = [p.writing(f"received {r}", p.length_between(r, rank)) for r in range(size)]
    for r, output in enumerate(outputs):
        p.expect(f"received {r}", output.read, p.input(r, rank, p.length_between(r, rank)))

    def issue(comm: torchcomms.TorchComm, a: bool) -> list[torchcomms.TorchWork]:
        batch = comm.batch_op_create()
        for turn in range(size):
            batch.recv(outputs[(rank + turn) % size].tensor, (rank + turn) % size)
            batch.send(inputs[turn].tensor, turn)
        return [batch.issue(async_op=a)]

    p.issue = issue


_MAKERS: dict[str, Callable[[Prepared], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_v": _all_gather,
    "all_gather_single": _all_gather_single,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_v": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_v_single": _all_to_all_v_single,
    "gather": _gather,
    "gather_single": _gather_single,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "batch": _batch,
}
assert set(_MAKERS) == set(OPERATIONS)
