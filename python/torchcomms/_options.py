"""Options of communicators and operations, as objects: `timeout`, `hints`, and what else there is.

Every operation also takes `timeout` and `hints` directly. Pure data; must not know the extension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store


Timeout = timedelta
"""What time-outs are given as."""


@dataclass
class CommOptions:
    """How a communicator was made and what holds for its operations; see `new_comm`.

    `timeout` and `hints` are those that hold now. `store` is the one the caller brought, which is
    not kept: None later on.
    """

    timeout: timedelta | None = None
    hints: dict[str, str] = field(default_factory=dict)
    abort_process_on_timeout_or_error: bool | None = None
    enable_reconfigure: bool = False
    store: Store | None = None
    name: str = ""
    rank: int = 0
    size: int = 1


@dataclass
class OperationOptions:
    """Options of one call of an operation."""

    timeout: timedelta | None = None
    hints: dict[str, str] | None = None


@dataclass
class SendOptions(OperationOptions):
    """Options of `send`."""


@dataclass
class RecvOptions(OperationOptions):
    """Options of `recv`."""


@dataclass
class BroadcastOptions(OperationOptions):
    """Options of `broadcast`."""


@dataclass
class AllReduceOptions(OperationOptions):
    """Options of `all_reduce`."""


@dataclass
class ReduceOptions(OperationOptions):
    """Options of `reduce`."""


@dataclass
class AllGatherOptions(OperationOptions):
    """Options of `all_gather`."""


@dataclass
class AllGatherVOptions(OperationOptions):
    """Options of `all_gather_v`."""


@dataclass
class AllGatherSingleOptions(OperationOptions):
    """Options of `all_gather_single`."""


@dataclass
class ReduceScatterOptions(OperationOptions):
    """Options of `reduce_scatter`."""


@dataclass
class ReduceScatterVOptions(OperationOptions):
    """Options of `reduce_scatter_v`."""


@dataclass
class ReduceScatterSingleOptions(OperationOptions):
    """Options of `reduce_scatter_single`."""


@dataclass
class AllToAllSingleOptions(OperationOptions):
    """Options of `all_to_all_single`."""


@dataclass
class AllToAllVSingleOptions(OperationOptions):
    """Options of `all_to_all_v_single`."""


@dataclass
class AllToAllOptions(OperationOptions):
    """Options of `all_to_all`."""


@dataclass
class BarrierOptions(OperationOptions):
    """Options of `barrier`."""


@dataclass
class ScatterOptions(OperationOptions):
    """Options of `scatter`."""


@dataclass
class GatherOptions(OperationOptions):
    """Options of `gather`."""


@dataclass
class GatherSingleOptions(OperationOptions):
    """Options of `gather_single`."""


@dataclass
class BatchP2POptions(OperationOptions):
    """Options of a batch of sends and receives."""


@dataclass
class SplitOptions(OperationOptions):
    """Options of `split`."""


@dataclass
class NewWindowOptions(OperationOptions):
    """Options of `new_window`."""


@dataclass
class P2POp:
    """A send or a receive for a batch: `P2POp(TorchComm.send, tensor, peer)`.

    `type` is `TorchComm.send` or `TorchComm.recv` (also bound to a communicator), or its name.
    """

    type: Callable[..., object] | str
    tensor: Tensor
    peer: int

    def __post_init__(self) -> None:
        """Checks what a batch cannot be told later.

        Raises:
            ValueError: `type` is neither a send nor a receive.
            TypeError: `tensor` is no tensor, or `peer` no int.
        """
        if self.name not in ("send", "recv"):
            raise ValueError(f"type must be send or recv, got {self.type!r}")
        if not hasattr(self.tensor, "data_ptr"):
            raise TypeError(f"tensor must be a torch.Tensor, got {type(self.tensor).__name__}")
        if not isinstance(self.peer, int):
            raise TypeError(f"peer must be an int, got {type(self.peer).__name__}")

    @property
    def name(self) -> str:
        """`send` or `recv`."""
        if isinstance(self.type, str):
            return self.type
        return str(getattr(self.type, "__name__", self.type))


__all__ = [
    "AllGatherOptions",
    "AllGatherSingleOptions",
    "AllGatherVOptions",
    "AllReduceOptions",
    "AllToAllOptions",
    "AllToAllSingleOptions",
    "AllToAllVSingleOptions",
    "BarrierOptions",
    "BatchP2POptions",
    "BroadcastOptions",
    "CommOptions",
    "GatherOptions",
    "GatherSingleOptions",
    "NewWindowOptions",
    "OperationOptions",
    "P2POp",
    "RecvOptions",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ReduceScatterSingleOptions",
    "ReduceScatterVOptions",
    "ScatterOptions",
    "SendOptions",
    "SplitOptions",
    "Timeout",
]
