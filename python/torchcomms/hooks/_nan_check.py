"""A hook that finds NaN in what an operation is about to send.

Reads inputs and changes nothing; must not know the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchcomms._hook_args import OpName, PreHookArgs

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms._comms import RemovableHandle, TorchComm

# What a rank that is not the root passes to these is not read.
_ROOT_GIVES = (OpName.broadcast, OpName.scatter)


class NanCheckHook:
    """Raises before an operation whose input on this rank has a NaN; nothing is sent then.

    Reads every input once, on a GPU with a synchronisation: for finding a fault, not for every day.
    A communicator stays as usable as it was, but its peers have begun the operation and wait for
    this rank.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def register_with_comm(self, comm: TorchComm) -> None:
        """Checks the operations of `comm` from now on, those of its torch.distributed group too."""
        label, rank = comm.get_name(), comm.get_rank()

        def check(name: OpName, op_id: int, args: PreHookArgs) -> None:
            for index, tensor in _inputs(args, rank):
                if _has_nan(tensor):
                    raise RuntimeError(
                        f"NaN in the input of {name.value} [communicator {label}, rank {rank}, "
                        f"tensor {index}, operation id {op_id}]"
                    )

        self._handles.append(comm.register_pre_hook(check))

    def unregister(self) -> None:
        """Stops checking, on all communicators."""
        while self._handles:
            self._handles.pop().remove()

    def is_enabled(self) -> bool:
        """Whether a communicator is registered."""
        return bool(self._handles)


def _inputs(args: PreHookArgs, rank: int) -> Iterator[tuple[int, Tensor]]:
    """What the operation reads on this rank, numbered."""
    if args.op_name is OpName.recv or args.op_name is OpName.new_window:
        return
    root: Any = getattr(args, "root", rank)
    if args.op_name in _ROOT_GIVES and root != rank:
        return
    given: Any = getattr(args, "input", None)
    if given is None:
        given = getattr(args, "tensor", None)
    if given is None:
        return
    yield from enumerate(given if isinstance(given, list) else [given])


def _has_nan(tensor: Tensor) -> bool:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    # The eight-bit types have no isnan of their own.
    if tensor.element_size() == 1:
        tensor = tensor.to(torch.float32)
    return bool(torch.isnan(tensor).any())
