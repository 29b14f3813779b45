"""Object collectives: Python objects instead of tensors, over a communicator.

Objects travel as the bytes of `torch.save`. Before any of them moves, the ranks tell each other how
many objects and bytes they bring, and whether they can bring them at all: an object that cannot be
pickled or a list of the wrong length on one rank raises on every rank, with that rank's reason, and
the communicator stays usable. Must not know engines: it calls the communicator's public operations.

Receiving with `weights_only=True`, the default, accepts numbers, strings, containers and tensors,
and nothing that could run code (see `torch.load`); `weights_only=False` accepts any object and is
for ranks that trust each other.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms._comms import TorchComm

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


class _State(IntEnum):
    """What a rank says about its part before anything moves."""

    READY = 0
    BAD_ARGUMENT = 1
    NOT_PICKLED = 2


@dataclass
class _Part:
    """What a rank brings: the bytes of each object, or why it has none."""

    state: _State
    objects: list[bytes]
    reason: str = ""
    cause: BaseException | None = None


class _Call:
    """One object operation on a communicator, under one deadline for all its steps."""

    def __init__(
        self,
        name: str,
        comm: TorchComm,
        timeout: timedelta | None,
        hints: Mapping[str, str] | None,
        weights_only: bool,
    ) -> None:
        self.name = name
        self.comm = comm
        self.rank = comm.get_rank()
        self.size = comm.get_size()
        self.device = comm.get_device()
        self._hints = hints
        self._weights_only = weights_only
        limit = comm.get_timeout() if timeout is None else timeout
        self._deadline = time.monotonic() + limit.total_seconds()

    def options(self) -> dict[str, Any]:
        """What every step is called with: what is left of the time-out, and the hints.

        The engine takes no time-out below a millisecond.
        """
        left = timedelta(seconds=max(0.001, self._deadline - time.monotonic()))
        return {"timeout": left, "hints": self._hints}

    def check_root(self, root: int) -> None:
        """Raises for a root outside the group, which the ranks cannot tell one another."""
        if not 0 <= root < self.size:
            raise ValueError(
                f"{self.name}: root {root} is out of range: expected 0 to {self.size - 1}"
            )

    def tensor(self, data: bytes) -> Tensor:
        """Bytes as a tensor where the communicator's tensors live."""
        # A copy, because torch wants memory that may be written.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def blank(self, size: int) -> Tensor:
        """Room for so many bytes."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def agree(self, part: _Part, columns: int) -> list[list[int]]:
        """The number of objects of every rank, then the lengths of its first `columns` objects.

        Raises on every rank when a rank cannot take part.
        """
        lengths = [len(data) for data in part.objects][:columns]
        row = [int(part.state), len(part.reason.encode()), len(part.objects), *lengths]
        row += [0] * (3 + columns - len(row))
        mine = torch.tensor(row, dtype=torch.int64, device=self.device)
        table = torch.empty(self.size * len(row), dtype=torch.int64, device=self.device)
        self.comm.all_gather_single(table, mine, **self.options())
        rows: list[list[int]] = table.view(self.size, len(row)).tolist()
        if any(state != _State.READY for state, *_ in rows):
            self._raise_reasons(rows, part)
        return [row[2:] for row in rows]

    def _raise_reasons(self, rows: list[list[int]], part: _Part) -> None:
        texts = [self.blank(row[1]) for row in rows]
        self.comm.all_gather_v(texts, self.tensor_or_empty(part.reason), **self.options())
        reasons = [
            f"rank {rank} {_text(text)}"
            for rank, (row, text) in enumerate(zip(rows, texts, strict=True))
            if row[0] != _State.READY
        ]
        wrong_argument = any(row[0] == _State.BAD_ARGUMENT for row in rows)
        kind = ValueError if wrong_argument else RuntimeError
        raise kind(f"{self.name}: {'; '.join(reasons)}: nothing was sent") from part.cause

    def tensor_or_empty(self, text: str) -> Tensor:
        """A text as a tensor; the empty one too, which `torch.frombuffer` refuses."""
        return self.tensor(text.encode()) if text else self.blank(0)

    def unpickle(self, data: Tensor, source: int) -> Any:
        """The object in these bytes.

        Raises:
            RuntimeError: it cannot be unpickled here; the message names the rank it came from.
        """
        file = io.BytesIO(_bytes(data))
        try:
            return torch.load(file, map_location=self._place, weights_only=self._weights_only)
        except Exception as error:
            remedy = "; weights_only=False accepts any object" if self._weights_only else ""
            raise RuntimeError(
                f"{self.name}: rank {self.rank} cannot unpickle the object of rank {source}: "
                f"{type(error).__name__}: {_first_line(error)}{remedy}"
            ) from error

    def _place(self, storage: Any, location: str) -> Any:
        """Tensors of a device like the communicator's come to its device, not to the sender's."""
        if location.partition(":")[0] != self.device.type:
            return None  # where torch puts them
        restore: Any = torch.serialization.default_restore_location
        return restore(storage, str(self.device))


def all_gather_object(
    comm: TorchComm,
    object_list: list[Any],
    obj: Any,
    timeout: timedelta | None = None,
    weights_only: bool = True,
    hints: Mapping[str, str] | None = None,
) -> None:
    """`object_list[r]` becomes rank r's `obj`. `object_list` has as many entries as ranks.

    Raises, here and in the other functions:
        ValueError: on every rank, when a list has the wrong length on one; named.
        RuntimeError: on every rank, when one cannot pickle; here, when an object cannot be
            unpickled.
        torch.distributed.DistBackendError: the communicator failed.
    """
    call = _Call("all_gather_object", comm, timeout, hints, weights_only)
    part = _checked_length("object_list", object_list, call.size) or _pickled([obj])
    rows = call.agree(part, columns=1)
    received = [call.blank(length) for _, length in rows]
    comm.all_gather_v(received, call.tensor(part.objects[0]), **call.options())
    object_list[:] = [call.unpickle(data, rank) for rank, data in enumerate(received)]


def gather_object(
    comm: TorchComm,
    obj: Any,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
    hints: Mapping[str, str] | None = None,
) -> None:
    """On `root`, `object_gather_list[r]` becomes rank r's `obj`; it has as many entries as ranks.

    Other ranks need no list; what they pass is left alone.
    """
    call = _Call("gather_object", comm, timeout, hints, weights_only)
    call.check_root(root)
    part = None
    if call.rank == root:
        part = _checked_length("object_gather_list", object_gather_list, call.size)
    part = part or _pickled([obj])
    rows = call.agree(part, columns=1)
    at_root = call.rank == root
    # Not `gather`, whose tensors are equally long.
    received = [call.blank(length if at_root else 0) for _, length in rows]
    mine = [call.blank(0) for _ in range(call.size)]
    mine[root] = call.tensor(part.objects[0])
    comm.all_to_all(received, mine, **call.options())
    if at_root and object_gather_list is not None:
        object_gather_list[:] = [call.unpickle(data, rank) for rank, data in enumerate(received)]


def broadcast_object_list(
    comm: TorchComm,
    object_list: list[Any],
    root: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
    hints: Mapping[str, str] | None = None,
) -> None:
    """`object_list` of `root` to all, entry by entry; the lists are equally long everywhere."""
    call = _Call("broadcast_object_list", comm, timeout, hints, weights_only)
    call.check_root(root)
    part = _pickled(object_list) if call.rank == root else _placeholders(object_list)
    counts = [row[0] for row in call.agree(part, columns=0)]
    if len(set(counts)) > 1:
        raise ValueError(
            f"broadcast_object_list: the lists have {counts} entries, by rank: expected those of "
            f"root {root}, {counts[root]}, everywhere"
        )
    if not counts[root]:
        return
    lengths = torch.tensor([len(data) for data in part.objects], dtype=torch.int64)
    lengths = lengths.to(call.device)
    comm.broadcast(lengths, root, **call.options())
    sizes: list[int] = lengths.tolist()
    whole = call.tensor(b"".join(part.objects)) if call.rank == root else call.blank(sum(sizes))
    comm.broadcast(whole, root, **call.options())
    if call.rank != root:
        object_list[:] = [call.unpickle(data, root) for data in torch.split(whole, sizes)]


def scatter_object_list(
    comm: TorchComm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
    hints: Mapping[str, str] | None = None,
) -> None:
    """`scatter_object_output_list[0]` becomes entry r of `root`'s input list, on rank r.

    The input list has as many entries as ranks on `root` and is ignored elsewhere; the output list
    has at least one entry.
    """
    call = _Call("scatter_object_list", comm, timeout, hints, weights_only)
    call.check_root(root)
    part = None
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        part = _refusal("has no entry in scatter_object_output_list: expected at least 1")
    elif call.rank == root:
        part = _checked_length("scatter_object_input_list", scatter_object_input_list, call.size)
    if part is None:
        part = _pickled((call.rank == root and scatter_object_input_list) or [])
    rows = call.agree(part, columns=call.size)
    pieces = [call.tensor(data) for data in part.objects]
    received = call.blank(rows[root][1 + call.rank])
    # Not `scatter`, whose tensors are equally long.
    comm.all_to_all(
        [received if rank == root else call.blank(0) for rank in range(call.size)],
        pieces or [call.blank(0) for _ in range(call.size)],
        **call.options(),
    )
    scatter_object_output_list[0] = call.unpickle(received, root)


def send_object_list(
    comm: TorchComm,
    object_list: Sequence[Any],
    dst: int,
    timeout: timedelta | None = None,
    hints: Mapping[str, str] | None = None,
) -> None:
    """The objects to rank `dst`, which calls `recv_object_list`.

    An object that cannot be pickled raises on both sides.
    """
    call = _Call("send_object_list", comm, timeout, hints, weights_only=True)
    part = _pickled(object_list)
    text = part.reason.encode()
    lengths = [len(data) for data in part.objects]
    header = [int(part.state), len(text), len(lengths)]
    comm.send(torch.tensor(header, device=call.device), dst, **call.options())
    if part.state != _State.READY:
        comm.send(call.tensor(text), dst, **call.options())
        raise RuntimeError(
            f"send_object_list: rank {call.rank} {part.reason}: nothing was sent"
        ) from part.cause
    if lengths:
        comm.send(torch.tensor(lengths, device=call.device), dst, **call.options())
        comm.send(call.tensor(b"".join(part.objects)), dst, **call.options())


def recv_object_list(
    comm: TorchComm,
    object_list: list[Any],
    src: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Fills `object_list` with what rank `src` sends; it has as many entries as the sender's.

    A list of another length raises here, after everything has been received: the sender goes on,
    and so does the connection.
    """
    call = _Call("recv_object_list", comm, timeout, hints, weights_only)
    header = torch.empty(3, dtype=torch.int64, device=call.device)
    comm.recv(header, src, **call.options())
    state, reason_length, count = header.tolist()
    if state != _State.READY:
        text = call.blank(reason_length)
        comm.recv(text, src, **call.options())
        raise RuntimeError(f"recv_object_list: rank {src} {_text(text)}: nothing was sent")
    received: Sequence[Tensor] = ()
    if count:
        lengths = torch.empty(count, dtype=torch.int64, device=call.device)
        comm.recv(lengths, src, **call.options())
        sizes: list[int] = lengths.tolist()
        whole = call.blank(sum(sizes))
        comm.recv(whole, src, **call.options())
        received = torch.split(whole, sizes)
    if count != len(object_list):
        raise ValueError(
            f"recv_object_list: object_list has {len(object_list)} entries: expected {count}, as "
            f"many as rank {src} sent"
        )
    object_list[:] = [call.unpickle(data, src) for data in received]


def _pickled(objects: Sequence[Any]) -> _Part:
    done: list[bytes] = []
    for index, obj in enumerate(objects):
        file = io.BytesIO()
        try:
            torch.save(obj, file)
        # What an object's own methods raise while it is pickled can be anything.
        except Exception as error:
            which = f" {index}" if len(objects) > 1 else ""
            reason = (
                f"cannot pickle its object{which} of type {type(obj).__name__}: "
                f"{type(error).__name__}: {_first_line(error)}"
            )
            return _Part(_State.NOT_PICKLED, [], reason, error)
        done.append(file.getvalue())
    return _Part(_State.READY, done)


def _placeholders(objects: Sequence[Any]) -> _Part:
    """For a rank that brings no object but says how many it expects."""
    return _Part(_State.READY, [b""] * len(objects))


def _refusal(reason: str) -> _Part:
    return _Part(_State.BAD_ARGUMENT, [], reason)


def _checked_length(name: str, objects: Sequence[Any] | None, size: int) -> _Part | None:
    if objects is None:
        return _refusal(f"has no {name}: expected a list of {size} entries, one per rank")
    if len(objects) != size:
        return _refusal(f"has {len(objects)} entries in {name}: expected {size}, one per rank")
    return None


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()


def _text(data: Tensor) -> str:
    return _bytes(data).decode(errors="replace")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""
