"""What every collective must give, in plain torch, from the inputs of all ranks.

Inputs are drawn from (seed, rank), so each rank can know all of them. Reductions are done in a
wider type where there is one; `assert_reduced` allows n roundings of the type itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
DTYPES = (*INTEGERS, *FLOATS, torch.bool, *COMPLEX, *FLOAT8)

_ORDERED = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
_BITWISE = ("BAND", "BOR", "BXOR")
OPS = (*_ORDERED, *_BITWISE, "PREMUL_SUM")
FACTOR = 0.75


def supported(op: str, dtype: torch.dtype) -> bool:
    """The table of docs/reductions.md, as a rule."""
    if dtype in FLOAT8:
        return False
    if dtype == torch.bool:
        return op not in ("AVG", "PREMUL_SUM")
    if dtype in INTEGERS:
        return op != "PREMUL_SUM"
    if dtype in COMPLEX:
        return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    return op not in _BITWISE


def data(seed: int, rank: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Rank `rank`'s input: contiguous, small enough that nothing but integers overflows."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)
    if dtype in INTEGERS:
        # whole range of a byte: sums of 8-bit types wrap around
        return torch.randint(-128, 128, tuple(shape), generator=generator).to(dtype)
    if dtype in COMPLEX:
        parts = torch.rand((*shape, 2), generator=generator, dtype=torch.float64) * 2 - 1
        return torch.view_as_complex(parts).to(dtype)
    return (torch.rand(tuple(shape), generator=generator, dtype=torch.float64) * 3 - 1.5).to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in COMPLEX:
        return torch.complex128
    return torch.float64 if dtype in FLOATS else torch.int64


def reduced(inputs: Sequence[Tensor], op: str) -> Tensor:
    """Element by element over the ranks, in a wide type for floats and exactly otherwise."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        stack = torch.stack(list(inputs)).to(torch.int64)
        if op in ("SUM", "MAX", "BOR"):
            return stack.sum(0) > 0
        if op in ("PRODUCT", "MIN", "BAND"):
            return stack.prod(0) > 0
        return stack.sum(0) % 2 == 1
    wide = torch.stack([t.to(_wide(dtype)) for t in inputs])
    if dtype in INTEGERS:
        return _reduced_integers(wide, op, dtype)
    if op == "SUM":
        return wide.sum(0)
    if op == "AVG":
        return wide.sum(0) / len(inputs)
    if op == "PRODUCT":
        return wide.prod(0)
    if op == "MIN":
        return wide.amin(0)
    if op == "MAX":
        return wide.amax(0)
    return (wide * FACTOR).sum(0)


def _reduced_integers(wide: Tensor, op: str, dtype: torch.dtype) -> Tensor:
    """Exact in int64, whose own wrap-around agrees with that of every narrower type."""
    if op == "SUM":
        return wide.sum(0).to(dtype)
    if op == "PRODUCT":
        return wide.prod(0).to(dtype)
    if op == "AVG":
        total = wide.sum(0).to(dtype)
        if dtype == torch.uint64:
            quotients = [int(t) // wide.shape[0] for t in total.flatten().tolist()]
            return torch.tensor(quotients, dtype=dtype).reshape(total.shape)
        return torch.div(total.to(torch.int64), wide.shape[0], rounding_mode="trunc").to(dtype)
    if op in ("MIN", "MAX"):
        if dtype == torch.uint64:
            # int64 reads the upper half as negative: compare with the sign bit turned over
            flipped = wide ^ torch.iinfo(torch.int64).min
            chosen = flipped.amin(0) if op == "MIN" else flipped.amax(0)
            return (chosen ^ torch.iinfo(torch.int64).min).to(dtype)
        return (wide.amin(0) if op == "MIN" else wide.amax(0)).to(dtype)
    result = wide[0].clone()
    for other in wide[1:]:
        if op == "BAND":
            result &= other
        elif op == "BOR":
            result |= other
        else:
            result ^= other
    return result.to(dtype)


def bits(tensor: Tensor) -> Tensor:
    """The bytes of `tensor`, for comparing dtypes that cannot be compared and NaN with NaN."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(got: Tensor, expected: Tensor, what: str = "") -> None:
    """Shape, dtype and every bit agree."""
    assert got.dtype == expected.dtype, f"{what}: {got.dtype} != {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape} != {expected.shape}"
    assert torch.equal(bits(got), bits(expected)), f"{what}: got {got}, expected {expected}"


def assert_reduced(got: Tensor, inputs: Sequence[Tensor], op: str, what: str = "") -> None:
    """`got` is the reduction of `inputs`: exactly, or for floats within n roundings of the type."""
    expected = reduced(inputs, op)
    dtype = inputs[0].dtype
    if dtype not in (*FLOATS, *COMPLEX) or op in ("MIN", "MAX"):
        assert_same(got, expected.to(dtype), f"{what} {op}")
        return
    assert got.dtype == dtype, f"{what}: {got.dtype} != {dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape} != {expected.shape}"
    if got.numel() == 0:
        return
    wide = torch.stack([t.to(_wide(dtype)) for t in inputs])
    magnitude = wide.abs().prod(0) if op == "PRODUCT" else wide.abs().sum(0)
    rounding = torch.finfo(torch.float16 if dtype == torch.complex32 else dtype).eps
    # a product of complex numbers has more roundings than one of reals
    roundings = 4 * len(inputs) if dtype in COMPLEX else len(inputs)
    bound = roundings * rounding * (magnitude + rounding)
    error = (got.to(_wide(dtype)) - expected).abs()
    assert bool((error <= bound).all()), (
        f"{what} {op} {dtype}: off by {error.max()} > {bound.max()}"
    )
