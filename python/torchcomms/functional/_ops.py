"""The operators `torch.ops.torchcomms.*`: what they do, their shapes, and their derivatives.

Each takes a tensor, the key of a communicator and plain numbers, and returns a new tensor, so that
torch's compiler can hold it in a graph. Blocks follow one another along the first dimension. Their
derivative is that of the sum of the ranks' results: what a rank contributed to several ranks gets
the sum of their gradients back. Must not know communicators' classes: `_keys` finds them.
"""

# No `from __future__ import annotations`: torch reads the types of operators from the signature.

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._library.effects import EffectType

from torchcomms.functional import _keys

_DIFFERENTIABLE = ("SUM", "AVG")

_F = TypeVar("_F", bound=Callable[..., Any])


def _operator(shape: Callable[..., Any]) -> Callable[[_F], _F]:
    """Makes an operator of a function, with `shape` for what it returns while it is traced."""

    def make(function: _F) -> _F:
        operator: Any = torch.library.custom_op(
            f"torchcomms::{function.__name__}", function, mutates_args=()
        )
        operator.register_fake(shape)
        # Kept in order among themselves, and where this rank has no use for the result: every rank
        # has to make the same calls in the same order, and their graphs may differ.
        operator.register_effect(EffectType.ORDERED)
        return cast(_F, operator)

    return make


def _same(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows(x: Tensor, rows: Any) -> Tensor:
    return x.new_empty((rows, *x.shape[1:]))


@_operator(_same)
def all_reduce(x: Tensor, comm: str, op: str) -> Tensor:
    """The ranks' `x` combined, on every rank."""
    out = x.clone(memory_format=torch.contiguous_format)
    _keys.communicator(comm).all_reduce(out, _keys.op_named(op))
    return out


@_operator(_same)
def reduce(x: Tensor, comm: str, root: int, op: str) -> Tensor:
    """The ranks' `x` combined on `root`, zeros elsewhere."""
    group = _keys.communicator(comm)
    out = x.clone(memory_format=torch.contiguous_format)
    group.reduce(out, root, _keys.op_named(op))
    return out if group.get_rank() == root else out.zero_()


@_operator(_same)
def broadcast(x: Tensor, comm: str, root: int) -> Tensor:
    """`x` of `root`, on every rank."""
    out = x.clone(memory_format=torch.contiguous_format)
    _keys.communicator(comm).broadcast(out, root)
    return out


@_operator(lambda x, comm, sizes: _rows(x, sum(sizes)))
def all_gather(x: Tensor, comm: str, sizes: Sequence[int]) -> Tensor:
    """The ranks' `x` one after another; rank r's has `sizes[r]` rows."""
    group = _keys.communicator(comm)
    out = _rows(x, sum(sizes))
    if len(set(sizes)) == 1:
        group.all_gather_single(out, x.contiguous())
    else:
        group.all_gather_v(list(torch.split(out, list(sizes))), x.contiguous())
    return out


@_operator(lambda x, comm, sizes, op: _rows(x, sizes[_keys.communicator(comm).get_rank()]))
def reduce_scatter(x: Tensor, comm: str, sizes: Sequence[int], op: str) -> Tensor:
    """This rank's `sizes[rank]` rows of the combined `x`."""
    group = _keys.communicator(comm)
    out = _rows(x, sizes[group.get_rank()])
    if len(set(sizes)) == 1:
        group.reduce_scatter_single(out, x.contiguous(), _keys.op_named(op))
    else:
        parts = list(torch.split(x.contiguous(), list(sizes)))
        group.reduce_scatter_v(out, parts, _keys.op_named(op))
    return out


@_operator(lambda x, comm, received, sent: _rows(x, sum(received)))
def all_to_all(x: Tensor, comm: str, received: Sequence[int], sent: Sequence[int]) -> Tensor:
    """`sent[r]` rows of `x` go to rank r; `received[r]` rows come from it."""
    out = _rows(x, sum(received))
    _keys.communicator(comm).all_to_all_v_single(out, x.contiguous(), list(received), list(sent))
    return out


@_operator(lambda x, comm, root: _rows(x, x.shape[0] // _keys.communicator(comm).get_size()))
def scatter(x: Tensor, comm: str, root: int) -> Tensor:
    """Rank r's equal part of `root`'s `x`."""
    group = _keys.communicator(comm)
    out = _rows(x, x.shape[0] // group.get_size())
    parts = list(x.contiguous().chunk(group.get_size())) if group.get_rank() == root else []
    group.scatter(out, parts, root)
    return out


@_operator(lambda x, comm, root: _rows(x, x.shape[0] * _keys.communicator(comm).get_size()))
def gather(x: Tensor, comm: str, root: int) -> Tensor:
    """The ranks' `x` one after another on `root`, zeros elsewhere."""
    group = _keys.communicator(comm)
    out = x.new_zeros((x.shape[0] * group.get_size(), *x.shape[1:]))
    group.gather_single(out, x.contiguous(), root)
    return out


@_operator(_same)
def recv(x: Tensor, comm: str, src: int) -> Tensor:
    """What rank `src` sends, in the shape of `x`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _keys.communicator(comm).recv(out, src)
    return out


@_operator(lambda x, comm, dst: None)
def send(x: Tensor, comm: str, dst: int) -> None:
    """`x` to rank `dst`."""
    _keys.communicator(comm).send(x.contiguous(), dst)


@_operator(lambda comm: None)
def barrier(comm: str) -> None:
    """Returns when every rank has called it."""
    _keys.communicator(comm).barrier()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.arguments = inputs[1:]


def _checked(op: str) -> str:
    if op not in _DIFFERENTIABLE:
        raise NotImplementedError(
            f"the derivative of a reduction with {op} is not defined here: expected one of "
            f"{', '.join(_DIFFERENTIABLE)}"
        )
    return op


def _averaged(grad: Tensor, comm: str, op: str) -> Tensor:
    """A gradient of a sum that became an average."""
    if _checked(op) == "SUM":
        return grad
    return grad / _keys.communicator(comm).get_size()


def _all_reduce_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, op = ctx.arguments
    return all_reduce(grad, comm, _checked(op)), None, None


def _reduce_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, root, op = ctx.arguments
    return _averaged(broadcast(grad, comm, root), comm, op), None, None, None


def _broadcast_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, root = ctx.arguments
    return reduce(grad, comm, root, "SUM"), None, None


def _all_gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, sizes = ctx.arguments
    return reduce_scatter(grad, comm, sizes, "SUM"), None, None


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, sizes, op = ctx.arguments
    return _averaged(all_gather(grad, comm, sizes), comm, op), None, None, None


def _all_to_all_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, received, sent = ctx.arguments
    return all_to_all(grad, comm, sent, received), None, None, None


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, root = ctx.arguments
    return gather(grad, comm, root), None, None


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    comm, root = ctx.arguments
    return scatter(grad, comm, root), None, None


_DERIVATIVES: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (all_reduce, _all_reduce_backward),
    (reduce, _reduce_backward),
    (broadcast, _broadcast_backward),
    (all_gather, _all_gather_backward),
    (reduce_scatter, _reduce_scatter_backward),
    (all_to_all, _all_to_all_backward),
    (scatter, _scatter_backward),
    (gather, _gather_backward),
)
for _forward, _backward in _DERIVATIVES:
    _forward.register_autograd(_backward, setup_context=_keep)
