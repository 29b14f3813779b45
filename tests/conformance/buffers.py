"""Tensors of given bytes in every arrangement of memory, with guards around and between.

Layouts are made and read on bytes in numpy: whether torch can copy a dtype is the engine's matter.
"""

from __future__ import annotations

import numpy as np
import torch
from elements import Bytes, Difference, width
from torch import Tensor

_GUARD = 64
_FILL = 0xA5


class Buffer:
    """A tensor with these elements; `read` gives them as they are now.

    With `rows` a transposed tensor has that first dimension and otherwise a small one.
    """

    def __init__(self, content: Bytes, dtype: str, layout: str, rows: int | None = None) -> None:
        self._count, self._width = content.shape
        self._layout = layout
        if layout == "transposed":
            first = _first_dimension(self._count, rows)
            if first is None:
                self._layout = "strided"
            else:
                self._rows = first
        room = self._count * self._width * (2 if self._layout == "strided" else 1)
        self._start = _GUARD + {"offset": 3 * self._width, "odd": 1}.get(layout, 0)
        self._end = self._start + room
        self._memory = np.full(self._end + _GUARD, _FILL, np.uint8)
        if self._memory.ctypes.data % 16 != 0:
            # numpy promises no more than 16, and the layouts count on it
            raise RuntimeError("numpy gave memory that is not aligned to 16 bytes")
        elements = self._elements()
        elements[...] = content.reshape(elements.shape)
        self.tensor = self._tensor(dtype)

    def _elements(self) -> Bytes:
        """The elements in logical order, wherever they stand."""
        inner = self._memory[self._start : self._end]
        if self._layout == "strided":
            return inner.reshape(self._count, 2, self._width)[:, 0]
        if self._layout == "transposed":
            columns = self._count // self._rows
            turned = inner.reshape(columns, self._rows, self._width).transpose(1, 0, 2)
            return turned
        return inner.reshape(self._count, self._width)

    def _tensor(self, dtype: str) -> Tensor:
        kind = getattr(torch, dtype)
        if self._count == 0:
            return torch.empty(0, dtype=kind)
        size = self._end - self._start
        flat = torch.frombuffer(
            self._memory.data, dtype=torch.uint8, count=size, offset=self._start
        ).view(kind)
        if self._layout == "strided":
            return flat[::2]
        if self._layout == "transposed":
            return flat.view(self._count // self._rows, self._rows).t()
        return flat

    def read(self) -> Bytes:
        """The elements in logical order."""
        rows = self._elements()
        if self._layout == "transposed":
            return np.ascontiguousarray(rows).reshape(self._count, self._width)
        return np.ascontiguousarray(rows)

    def check_guards(self, what: str) -> None:
        """Raises `Difference` when memory beside the elements has changed."""
        before, after = self._memory[: self._start], self._memory[self._end :]
        between = (
            self._memory[self._start : self._end].reshape(self._count, 2, self._width)[:, 1]
            if self._layout == "strided"
            else self._memory[:0]
        )
        for place, memory in (("before", before), ("after", after), ("between", between)):
            if not bool((memory == _FILL).all()):
                at = int(np.flatnonzero(memory.reshape(-1) != _FILL)[0])
                raise Difference(f"{what}: memory {place} the elements was written, byte {at}")


def _first_dimension(count: int, rows: int | None) -> int | None:
    if count == 0:
        return None
    if rows is not None:
        return rows if count % rows == 0 else None
    return next((n for n in (2, 3, 5, 7, 11, 13) if count % n == 0 and count > n), None)


def plain(content: Bytes, dtype: str) -> Tensor:
    """A contiguous tensor of these elements without guards."""
    assert content.shape[1] == width(dtype)
    kind = getattr(torch, dtype)
    if len(content) == 0:
        return torch.empty(0, dtype=kind)
    return torch.from_numpy(np.ascontiguousarray(content).reshape(-1).copy()).view(kind)
