"""Collectives as functions: with new tensors, derivatives, and in graphs of torch.compile.

    from torchcomms import functional
    total = functional.all_reduce(comm, x)

Inside `torch.compile(fullgraph=True)` each is one operator of the graph. The derivative is that of
the sum of all ranks' losses: `all_reduce` has itself, `all_gather` has `reduce_scatter`,
`broadcast` has `reduce`, `scatter` has `gather`, each also the other way round, and `all_to_all`
sends the gradients back. Reductions have one with SUM and AVG. An operation is done when its
function returns, within the communicator's time-out; every rank calls the same operations, in the
same order, and lets gradients flow through the same ones.

With TORCHCOMMS_PATCH_FOR_COMPILE=1, read when torchcomms is imported, the methods of `TorchComm`
are traced as well; see `_methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchcomms import _compile
from torchcomms.functional import _keys, _ops

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms._comms import TorchComm

__all__ = [
    "all_gather",
    "all_gather_single",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_single",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "is_torch_compile_supported_and_enabled",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_v",
    "scatter",
]

_keys.register()


def is_torch_compile_supported_and_enabled() -> bool:
    """Whether methods of `TorchComm` can be compiled here: the variable is set and torch fits."""
    return _compile.ENABLED and _keys.compile_support()


def all_reduce(comm: TorchComm, tensor: Tensor, op: Any = "SUM") -> Tensor:
    """The ranks' tensors combined, on every rank."""
    return _ops.all_reduce(tensor, _key(comm), _keys.op_name(op))


def reduce(comm: TorchComm, tensor: Tensor, root: int, op: Any = "SUM") -> Tensor:
    """The ranks' tensors combined on `root`; zeros elsewhere."""
    return _ops.reduce(tensor, _key(comm), root, _keys.op_name(op))


def broadcast(comm: TorchComm, tensor: Tensor, root: int) -> Tensor:
    """`root`'s tensor, on every rank; the others pass one of its shape."""
    return _ops.broadcast(tensor, _key(comm), root)


def all_gather_single(comm: TorchComm, tensor: Tensor) -> Tensor:
    """The ranks' equally large tensors, one after another along the first dimension."""
    tensor = _rows(tensor)
    return _ops.all_gather(tensor, _key(comm), [tensor.shape[0]] * comm.get_size())


def all_gather(comm: TorchComm, tensor: Tensor) -> list[Tensor]:
    """The ranks' equally large tensors, by rank."""
    rows = _ops.all_gather(tensor.unsqueeze(0), _key(comm), [1] * comm.get_size())
    return list(rows.unbind(0))


def all_gather_v(comm: TorchComm, tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The ranks' tensors, by rank; rank r's has `sizes[r]` rows."""
    rows = _ops.all_gather(tensor, _key(comm), list(sizes))
    return list(torch.split(rows, list(sizes)))


def reduce_scatter_single(comm: TorchComm, tensor: Tensor, op: Any = "SUM") -> Tensor:
    """This rank's equal part, along the first dimension, of the combined tensors."""
    size = comm.get_size()
    _check_parts("reduce_scatter_single", tensor, size)
    return _ops.reduce_scatter(
        tensor, _key(comm), [tensor.shape[0] // size] * size, _keys.op_name(op)
    )


def reduce_scatter(comm: TorchComm, tensors: Sequence[Tensor], op: Any = "SUM") -> Tensor:
    """Entry `rank` of the ranks' lists, combined; all entries have one shape."""
    _check_entries("reduce_scatter", tensors, comm.get_size())
    rows = torch.stack(list(tensors))
    mine = _ops.reduce_scatter(rows, _key(comm), [1] * len(tensors), _keys.op_name(op))
    return mine.squeeze(0)


def reduce_scatter_v(comm: TorchComm, tensors: Sequence[Tensor], op: Any = "SUM") -> Tensor:
    """As `reduce_scatter`, with entries of different numbers of rows, the same on every rank."""
    _check_entries("reduce_scatter_v", tensors, comm.get_size())
    sizes = [tensor.shape[0] for tensor in tensors]
    return _ops.reduce_scatter(torch.cat(list(tensors)), _key(comm), sizes, _keys.op_name(op))


def all_to_all_single(comm: TorchComm, tensor: Tensor) -> Tensor:
    """Equal part r of the tensor goes to rank r; what comes back lies in the order of the ranks."""
    size = comm.get_size()
    _check_parts("all_to_all_single", tensor, size)
    rows = [tensor.shape[0] // size] * size
    return _ops.all_to_all(tensor, _key(comm), rows, rows)


def all_to_all_v_single(
    comm: TorchComm,
    tensor: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
) -> Tensor:
    """As `all_to_all_single`, with parts of so many rows."""
    return _ops.all_to_all(tensor, _key(comm), list(output_split_sizes), list(input_split_sizes))


def all_to_all(
    comm: TorchComm, tensors: Sequence[Tensor], output_split_sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Entry r goes to rank r. Entry r of the result, from it, has `output_split_sizes[r]` rows.

    Without sizes: as many as this rank sends to it.
    """
    _check_entries("all_to_all", tensors, comm.get_size())
    sent = [tensor.shape[0] for tensor in tensors]
    received = sent if output_split_sizes is None else list(output_split_sizes)
    rows = _ops.all_to_all(torch.cat(list(tensors)), _key(comm), received, sent)
    return list(torch.split(rows, received))


def scatter(comm: TorchComm, tensor: Tensor, root: int) -> Tensor:
    """This rank's equal part of `root`'s tensor; the others pass one of its shape."""
    _check_parts("scatter", tensor, comm.get_size())
    return _ops.scatter(tensor, _key(comm), root)


def gather(comm: TorchComm, tensor: Tensor, root: int) -> Tensor:
    """The ranks' equally large tensors one after another on `root`; zeros elsewhere."""
    return _ops.gather(_rows(tensor), _key(comm), root)


def gather_single(comm: TorchComm, tensor: Tensor, root: int) -> Tensor:
    """As `gather`: the ranks' tensors are in one either way."""
    return gather(comm, tensor, root)


def barrier(comm: TorchComm) -> None:
    """Returns when every rank has called it."""
    _ops.barrier(_key(comm))


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.reshape(1)


def _key(comm: TorchComm) -> str:
    return comm._functional_key()  # type: ignore[attr-defined, no-any-return]


def _check_parts(name: str, tensor: Tensor, size: int) -> None:
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise ValueError(
            f"{name}: a tensor of shape {tuple(tensor.shape)} has no {size} equal parts along its "
            "first dimension"
        )


def _check_entries(name: str, tensors: Sequence[Tensor], size: int) -> None:
    if len(tensors) != size:
        raise ValueError(f"{name}: got {len(tensors)} tensors: expected {size}, one per rank")
