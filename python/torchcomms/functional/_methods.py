"""The methods of `TorchComm` in a compiled graph, where TORCHCOMMS_PATCH_FOR_COMPILE asks for it.

Outside of one they are what they were. Inside, a method becomes the operator of `_ops` and a copy
of its result into the caller's tensor; the operation is done when the graph goes on, so `async_op`
decides only what is returned, and time-outs are the communicator's. Must not know how data moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchcomms._comms import TorchComm, WorkStatus
from torchcomms.functional import _keys, _ops

if TYPE_CHECKING:
    from torch import Tensor

# What every method takes after its own arguments.
_OPTIONS = ("async_op", "hints", "timeout")


class TracedWork:
    """What a traced operation returns: it is done."""

    status = WorkStatus.COMPLETED

    def wait(self, timeout: Any = None) -> None:
        """Returns at once."""

    def wait_blocking(self) -> None:
        """Returns at once."""

    def is_completed(self) -> bool:
        """True."""
        return True


def _all_reduce(comm: TorchComm, tensor: Tensor, op: Any) -> None:
    tensor.copy_(_ops.all_reduce(tensor, _key(comm), _keys.op_name(op)))


def _reduce(comm: TorchComm, tensor: Tensor, root: int, op: Any) -> None:
    result = _ops.reduce(tensor, _key(comm), root, _keys.op_name(op))
    if comm.get_rank() == root:
        tensor.copy_(result)


def _broadcast(comm: TorchComm, tensor: Tensor, root: int) -> None:
    tensor.copy_(_ops.broadcast(tensor, _key(comm), root))


def _all_gather_single(comm: TorchComm, output: Tensor, input: Tensor) -> None:
    rows = _ops.all_gather(input.reshape(1, -1), _key(comm), [1] * comm.get_size())
    output.copy_(rows.view_as(output))


def _all_gather(comm: TorchComm, tensor_list: Sequence[Tensor], tensor: Tensor) -> None:
    sizes = [each.numel() for each in tensor_list]
    flat = _ops.all_gather(tensor.reshape(-1), _key(comm), sizes)
    _copy_parts(tensor_list, flat)


def _reduce_scatter_single(comm: TorchComm, output: Tensor, input: Tensor, op: Any) -> None:
    rows = input.reshape(comm.get_size(), -1)
    mine = _ops.reduce_scatter(rows, _key(comm), [1] * comm.get_size(), _keys.op_name(op))
    output.copy_(mine.view_as(output))


def _reduce_scatter(comm: TorchComm, output: Tensor, input_list: Sequence[Tensor], op: Any) -> None:
    sizes = [each.numel() for each in input_list]
    mine = _ops.reduce_scatter(_flat(input_list), _key(comm), sizes, _keys.op_name(op))
    output.copy_(mine.view_as(output))


def _all_to_all(
    comm: TorchComm, output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor]
) -> None:
    received = [each.numel() for each in output_tensor_list]
    sent = [each.numel() for each in input_tensor_list]
    _copy_parts(
        output_tensor_list,
        _ops.all_to_all(_flat(input_tensor_list), _key(comm), received, sent),
    )


def _all_to_all_single(comm: TorchComm, output: Tensor, input: Tensor) -> None:
    size = comm.get_size()
    rows = _ops.all_to_all(input.reshape(size, -1), _key(comm), [1] * size, [1] * size)
    output.copy_(rows.view_as(output))


def _all_to_all_v_single(
    comm: TorchComm,
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
) -> None:
    output.copy_(
        _ops.all_to_all(input, _key(comm), list(output_split_sizes), list(input_split_sizes))
    )


def _scatter(
    comm: TorchComm, output_tensor: Tensor, input_tensor_list: Sequence[Tensor], root: int
) -> None:
    at_root = comm.get_rank() == root
    given = list(input_tensor_list) if at_root else [output_tensor] * comm.get_size()
    rows = torch.stack(given)
    output_tensor.copy_(_ops.scatter(rows, _key(comm), root).squeeze(0))


def _gather(
    comm: TorchComm, output_tensor_list: Sequence[Tensor], input_tensor: Tensor, root: int
) -> None:
    rows = _ops.gather(input_tensor.unsqueeze(0), _key(comm), root)
    if comm.get_rank() == root:
        for output, row in zip(output_tensor_list, rows.unbind(0), strict=True):
            output.copy_(row)


def _gather_single(comm: TorchComm, output: Tensor, input: Tensor, root: int) -> None:
    rows = _ops.gather(input.reshape(1, -1), _key(comm), root)
    if comm.get_rank() == root:
        output.copy_(rows.view_as(output))


def _send(comm: TorchComm, tensor: Tensor, dst: int) -> None:
    _ops.send(tensor, _key(comm), dst)


def _recv(comm: TorchComm, tensor: Tensor, src: int) -> None:
    tensor.copy_(_ops.recv(tensor, _key(comm), src))


def _barrier(comm: TorchComm) -> None:
    _ops.barrier(_key(comm))


_TRACED: dict[str, Callable[..., None]] = {
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "all_gather_v": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_v_single": _all_to_all_v_single,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "gather_single": _gather_single,
    "recv": _recv,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_v": _reduce_scatter,
    "scatter": _scatter,
    "send": _send,
}


@functools.cache
def patch() -> None:
    """Makes the methods of `TorchComm` traceable; the second time does nothing."""
    for name, traced in _TRACED.items():
        setattr(TorchComm, name, _either(getattr(TorchComm, name), traced))


def _either(original: Callable[..., Any], traced: Callable[..., None]) -> Callable[..., Any]:
    own = traced.__code__.co_argcount - 1

    def method(self: TorchComm, *arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            return original(self, *arguments, **named)
        named.update(zip(_OPTIONS, arguments[own:], strict=False))
        for option in ("hints", "timeout"):
            if named.pop(option, None) is not None:
                raise NotImplementedError(
                    f"{option}= cannot be traced: set it on the communicator before"
                )
        named.pop("async_op", None)
        traced(self, *arguments[:own], **named)
        return TracedWork()

    method.__name__ = original.__name__
    method.__doc__ = original.__doc__
    return method


def _key(comm: TorchComm) -> str:
    return comm._functional_key()  # type: ignore[attr-defined, no-any-return]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])


def _copy_parts(tensors: Sequence[Tensor], flat: Tensor) -> None:
    parts = torch.split(flat, [each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.copy_(part.view_as(each))
