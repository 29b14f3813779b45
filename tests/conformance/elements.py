"""Inputs and expected results as bytes: drawn, combined and compared in numpy.

Elements are rows of bytes, so that every dtype is drawn and compared alike. Inputs come from
(salt, rank, part): each rank knows the inputs of all. Must not know communicators or layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from factors import COMPLEX, FLOAT8, FLOATS, INTEGERS

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]

FACTOR = 0.75
# A prime, so that no two pieces of a pipeline hold the same elements.
_PERIOD = 65537
_REAL = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


class Difference(AssertionError):
    """A result is not what the reference says."""


def width(dtype: str) -> int:
    """Bytes of an element."""
    return int(getattr(torch, dtype).itemsize)


def draw(dtype: str, values: str, salt: int, rank: int, part: int, count: int) -> Bytes:
    """`count` elements of rank `rank`'s input number `part`; a new array of (count, width)."""
    pool = _pool(dtype, values)
    if count == 0:
        return np.empty((0, pool.shape[1]), np.uint8)
    start = (salt * 40503 + rank * 9973 + part * 31337) % _PERIOD
    rounds = -(-(start + count) // _PERIOD)
    if rounds == 1:
        return pool[start : start + count].copy()
    return np.concatenate([pool] * rounds)[start : start + count]


@cache
def _pool(dtype: str, values: str) -> Bytes:
    chance = np.random.default_rng(len(dtype) * 7 + len(values))
    if dtype == "bool":
        return chance.integers(0, 2, (_PERIOD, 1), dtype=np.uint8)
    if dtype in INTEGERS or dtype in FLOAT8:
        pool = chance.integers(0, 256, (_PERIOD, width(dtype)), dtype=np.uint8)
        if values == "special" and dtype in INTEGERS:
            _sprinkle(pool, _integer_corners(dtype), chance)
        return pool
    real = _REAL.get(dtype, dtype)
    numbers = chance.uniform(-1.5, 1.5, _PERIOD * (2 if dtype in COMPLEX else 1))
    pool = _rows(_narrow(numbers, real), width(real))
    if values == "special":
        _sprinkle(pool, _float_corners(real), chance)
    return pool.reshape(_PERIOD, width(dtype))


def _sprinkle(pool: Bytes, corners: Bytes, chance: np.random.Generator) -> None:
    where = chance.random(len(pool)) < 0.3
    pool[where] = corners[chance.integers(0, len(corners), int(where.sum()))]


def _integer_corners(dtype: str) -> Bytes:
    kind = np.dtype(dtype)
    info = np.iinfo(kind)
    corners = [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1]
    return _rows(np.array(corners, kind), kind.itemsize)


def _float_corners(real: str) -> Bytes:
    info = torch.finfo(getattr(torch, real))
    least = info.smallest_normal * info.eps
    corners = [0.0, -0.0, math.inf, -math.inf, math.nan, info.max, -info.max, 1.0, -1.0]
    corners += [info.smallest_normal, least, -least, 1.0 + info.eps, 1.0 - info.eps / 2]
    return _rows(_narrow(np.array(corners), real), width(real))


def _rows(numbers: Numbers, size: int) -> Bytes:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, size)


def _narrow(numbers: Numbers, real: str) -> Numbers:
    """To a stored type, to nearest even; bfloat16 as the 16-bit words of its elements."""
    if real == "bfloat16":
        narrow = torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.bfloat16)
        words: Numbers = narrow.view(torch.int16).numpy().view(np.uint16)
        return words
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return numbers.astype(real)


def _widen(rows: Bytes, real: str) -> Numbers:
    """To the type that a reduction combines in."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    if real == "bfloat16":
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    numbers: Numbers = flat.view(real)
    return numbers.astype(np.float32) if real == "float16" else numbers


def reduced(inputs: Sequence[Bytes], op: str, dtype: str) -> Bytes:
    """The inputs combined in the order given, in the type the engine promises to combine in."""
    if dtype == "bool":
        return _reduced_truth(inputs, op)
    with np.errstate(all="ignore"):
        if dtype in INTEGERS:
            return _rows(_reduced_integers([_numbers(i, dtype) for i in inputs], op), width(dtype))
        real = _REAL.get(dtype, dtype)
        wide = [_widen(rows, real) for rows in inputs]
        if op == "PRODUCT" and dtype in COMPLEX:
            combined = _complex_product(wide)
        else:
            combined = _reduced_reals(wide, op)
        return _rows(_narrow(combined, real), width(dtype))


def _numbers(rows: Bytes, dtype: str) -> Numbers:
    return np.ascontiguousarray(rows).reshape(-1).view(dtype)


def _reduced_truth(inputs: Sequence[Bytes], op: str) -> Bytes:
    truth = [rows != 0 for rows in inputs]
    total = truth[0].copy()
    for other in truth[1:]:
        if op in ("SUM", "MAX", "BOR"):
            total |= other
        elif op in ("PRODUCT", "MIN", "BAND"):
            total &= other
        else:
            total ^= other
    truth: Bytes = total.astype(np.uint8)
    return truth


def _reduced_integers(inputs: Sequence[Numbers], op: str) -> Numbers:
    total = inputs[0].copy()
    for other in inputs[1:]:
        if op in ("SUM", "AVG"):
            total += other
        elif op == "PRODUCT":
            total *= other
        elif op == "MIN":
            np.minimum(total, other, out=total)
        elif op == "MAX":
            np.maximum(total, other, out=total)
        elif op == "BAND":
            total &= other
        elif op == "BOR":
            total |= other
        else:
            total ^= other
    if op != "AVG":
        return total
    if total.dtype.kind == "u":
        return (total.astype(np.uint64) // np.uint64(len(inputs))).astype(total.dtype)
    # toward zero: of a negative one, the floor of what is a little larger
    whole = total.astype(np.int64)
    return ((whole + (whole < 0) * (len(inputs) - 1)) // len(inputs)).astype(total.dtype)


def _reduced_reals(inputs: Sequence[Numbers], op: str) -> Numbers:
    scale = inputs[0].dtype.type(FACTOR)
    total = inputs[0] * scale if op == "PREMUL_SUM" else inputs[0].copy()
    for other in inputs[1:]:
        if op in ("SUM", "AVG"):
            total += other
        elif op == "PREMUL_SUM":
            total += other * scale
        elif op == "PRODUCT":
            total *= other
        else:
            # NaN wins; of equal ones (0 and -0) the lower rank's stays
            better = other < total if op == "MIN" else other > total
            total = np.where(better | np.isnan(other), other, total)
    return total / total.dtype.type(len(inputs)) if op == "AVG" else total


def _complex_product(inputs: Sequence[Numbers]) -> Numbers:
    re, im = inputs[0][0::2].copy(), inputs[0][1::2].copy()
    for other in inputs[1:]:
        re, im = re * other[0::2] - im * other[1::2], re * other[1::2] + im * other[0::2]
    both = np.empty(2 * len(re), re.dtype)
    both[0::2], both[1::2] = re, im
    return both


@dataclass(frozen=True)
class Reduction:
    """A result to expect of a reduction. `exact`: combined in rank order, to the last bit."""

    inputs: Sequence[Bytes]
    op: str
    dtype: str
    exact: bool


def compare(got: Bytes, wanted: Bytes | Reduction, what: str) -> None:
    """Raises `Difference` with the first index that differs, what is there and what should be."""
    expected = (
        wanted
        if isinstance(wanted, np.ndarray)
        else reduced(wanted.inputs, wanted.op, wanted.dtype)
    )
    if got.shape != expected.shape:
        raise Difference(f"{what}: got {len(got)} elements, expected {len(expected)}")
    if np.array_equal(got, expected):
        return
    wrong = np.flatnonzero((got != expected).any(axis=1))
    if not isinstance(wanted, np.ndarray):
        wrong = _still_wrong(got, expected, wrong, wanted)
        if len(wrong) == 0:
            return
        dtype = wanted.dtype
    else:
        dtype = ""
    first = int(wrong[0])
    raise Difference(
        f"{what}: {len(wrong)} of {len(got)} elements differ, first at index {first}: "
        f"got {_shown(got[first], dtype)}, expected {_shown(expected[first], dtype)}"
        + ("" if isinstance(wanted, np.ndarray) else f" from {_operands(wanted, first)}")
    )


def _shown(element: Bytes, dtype: str) -> str:
    text = element.tobytes().hex()
    if not dtype:
        return f"bytes {text}"
    try:
        value = torch.frombuffer(bytearray(element.tobytes()), dtype=getattr(torch, dtype)).tolist()
    except (RuntimeError, ValueError, TypeError):
        return f"bytes {text}"
    return f"{value[0]!r} (bytes {text})"


def _operands(wanted: Reduction, index: int) -> str:
    return ", ".join(_shown(rows[index], wanted.dtype) for rows in wanted.inputs)


def _still_wrong(
    got: Bytes, expected: Bytes, wrong: npt.NDArray[np.intp], wanted: Reduction
) -> npt.NDArray[np.intp]:
    """Of the elements whose bits differ, those that no rule allows."""
    if wanted.dtype not in FLOATS and wanted.dtype not in COMPLEX:
        return wrong
    real = _REAL.get(wanted.dtype, wanted.dtype)
    per_element = 2 if wanted.dtype in COMPLEX else 1
    mine = _widen(got[wrong], real)
    right = _widen(expected[wrong], real)
    # NaN has many bit patterns; that all ranks have the same one is checked elsewhere
    fine = (_bits(mine) == _bits(right)) | (np.isnan(mine) & np.isnan(right))
    if not wanted.exact:
        fine |= _close(mine, [_widen(rows[wrong], real) for rows in wanted.inputs], wanted, real)
    good: npt.NDArray[np.bool_] = fine.reshape(-1, per_element).all(axis=1)
    return wrong[~good]


def _bits(numbers: Numbers) -> Numbers:
    return numbers.view(np.uint64 if numbers.dtype == np.float64 else np.uint32)


def _close(
    mine: Numbers, inputs: Sequence[Numbers], wanted: Reduction, real: str
) -> npt.NDArray[np.bool_]:
    """Within n roundings of the sum or product in float64, in whatever order it was combined."""
    with np.errstate(all="ignore"):
        wide = [numbers.astype(np.float64) for numbers in inputs]
        if wanted.op in ("MIN", "MAX"):
            right: Numbers = _reduced_reals(wide, wanted.op)
            same: npt.NDArray[np.bool_] = mine == right
            return same
        info = torch.finfo(getattr(torch, real))
        count = len(wide)
        if wanted.dtype in COMPLEX and wanted.op == "PRODUCT":
            right = _complex_product(wide)
            sizes = [np.hypot(w[0::2], w[1::2]) for w in wide]
            bound = np.repeat(np.prod(sizes, axis=0), 2) * 4
        else:
            right = _reduced_reals(wide, wanted.op)
            absolute = [np.abs(w) for w in wide]
            bound = _reduced_reals(absolute, wanted.op)
        error = np.abs(mine.astype(np.float64) - right)
        near = error <= count * info.eps * (bound + info.smallest_normal)
        # where a partial result may overflow or meet infinity, the order decides
        sizes_seen = np.max([np.abs(w) for w in wide], axis=0)
        if wanted.dtype in COMPLEX and wanted.op == "PRODUCT":
            # each component of a factor goes into both of the product
            sizes_seen = np.repeat(np.maximum(sizes_seen[0::2], sizes_seen[1::2]), 2)
        finite = np.isfinite(sizes_seen) & (sizes_seen * count < info.max / 2)
        if wanted.op == "PRODUCT":
            finite &= np.isfinite(right)
        allowed: npt.NDArray[np.bool_] = near | ~finite
        return allowed
