"""What hooks are told: the operations' names, and a class of arguments for each.

Pure data, made by the extension; must not know it. The order of `PRE` and `POST` is that of
`OpName`, and the order of a class's fields that of the operation's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms._comms import ReduceOp, TorchComm, TorchWork


class OpName(Enum):
    """The operations that hooks are told of."""

    send = "send"
    recv = "recv"
    broadcast = "broadcast"
    all_reduce = "all_reduce"
    reduce = "reduce"
    all_gather = "all_gather"
    all_gather_v = "all_gather_v"
    all_gather_single = "all_gather_single"
    reduce_scatter = "reduce_scatter"
    reduce_scatter_v = "reduce_scatter_v"
    reduce_scatter_single = "reduce_scatter_single"
    all_to_all_single = "all_to_all_single"
    all_to_all_v_single = "all_to_all_v_single"
    all_to_all = "all_to_all"
    barrier = "barrier"
    scatter = "scatter"
    gather = "gather"
    gather_single = "gather_single"
    split = "split"
    new_window = "new_window"
    finalize = "finalize"


@dataclass(slots=True)
class PreHookArgs:
    """Arguments of an operation that is about to be issued."""

    op_name: ClassVar[OpName]


@dataclass(slots=True)
class PostHookArgs:
    """What came of an operation that was issued."""

    op_name: ClassVar[OpName]


@dataclass(slots=True)
class SendPreHookArgs(PreHookArgs):
    """Arguments of `send`."""

    op_name: ClassVar[OpName] = OpName.send
    tensor: Tensor
    peer: int
    async_op: bool


@dataclass(slots=True)
class SendPostHookArgs(PostHookArgs):
    """What came of `send`."""

    op_name: ClassVar[OpName] = OpName.send
    work: TorchWork | None


@dataclass(slots=True)
class RecvPreHookArgs(PreHookArgs):
    """Arguments of `recv`."""

    op_name: ClassVar[OpName] = OpName.recv
    tensor: Tensor
    peer: int
    async_op: bool


@dataclass(slots=True)
class RecvPostHookArgs(PostHookArgs):
    """What came of `recv`."""

    op_name: ClassVar[OpName] = OpName.recv
    work: TorchWork | None


@dataclass(slots=True)
class BroadcastPreHookArgs(PreHookArgs):
    """Arguments of `broadcast`."""

    op_name: ClassVar[OpName] = OpName.broadcast
    tensor: Tensor
    root: int
    async_op: bool


@dataclass(slots=True)
class BroadcastPostHookArgs(PostHookArgs):
    """What came of `broadcast`."""

    op_name: ClassVar[OpName] = OpName.broadcast
    work: TorchWork | None


@dataclass(slots=True)
class AllReducePreHookArgs(PreHookArgs):
    """Arguments of `all_reduce`."""

    op_name: ClassVar[OpName] = OpName.all_reduce
    tensor: Tensor
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class AllReducePostHookArgs(PostHookArgs):
    """What came of `all_reduce`."""

    op_name: ClassVar[OpName] = OpName.all_reduce
    work: TorchWork | None


@dataclass(slots=True)
class ReducePreHookArgs(PreHookArgs):
    """Arguments of `reduce`."""

    op_name: ClassVar[OpName] = OpName.reduce
    tensor: Tensor
    root: int
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class ReducePostHookArgs(PostHookArgs):
    """What came of `reduce`."""

    op_name: ClassVar[OpName] = OpName.reduce
    work: TorchWork | None


@dataclass(slots=True)
class AllGatherPreHookArgs(PreHookArgs):
    """Arguments of `all_gather`."""

    op_name: ClassVar[OpName] = OpName.all_gather
    output: list[Tensor]
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class AllGatherPostHookArgs(PostHookArgs):
    """What came of `all_gather`."""

    op_name: ClassVar[OpName] = OpName.all_gather
    work: TorchWork | None


@dataclass(slots=True)
class AllGatherVPreHookArgs(PreHookArgs):
    """Arguments of `all_gather_v`."""

    op_name: ClassVar[OpName] = OpName.all_gather_v
    output: list[Tensor]
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class AllGatherVPostHookArgs(PostHookArgs):
    """What came of `all_gather_v`."""

    op_name: ClassVar[OpName] = OpName.all_gather_v
    work: TorchWork | None


@dataclass(slots=True)
class AllGatherSinglePreHookArgs(PreHookArgs):
    """Arguments of `all_gather_single`."""

    op_name: ClassVar[OpName] = OpName.all_gather_single
    output: Tensor
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class AllGatherSinglePostHookArgs(PostHookArgs):
    """What came of `all_gather_single`."""

    op_name: ClassVar[OpName] = OpName.all_gather_single
    work: TorchWork | None


@dataclass(slots=True)
class ReduceScatterPreHookArgs(PreHookArgs):
    """Arguments of `reduce_scatter`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter
    output: Tensor
    input: list[Tensor]
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class ReduceScatterPostHookArgs(PostHookArgs):
    """What came of `reduce_scatter`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter
    work: TorchWork | None


@dataclass(slots=True)
class ReduceScatterVPreHookArgs(PreHookArgs):
    """Arguments of `reduce_scatter_v`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter_v
    output: Tensor
    input: list[Tensor]
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class ReduceScatterVPostHookArgs(PostHookArgs):
    """What came of `reduce_scatter_v`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter_v
    work: TorchWork | None


@dataclass(slots=True)
class ReduceScatterSinglePreHookArgs(PreHookArgs):
    """Arguments of `reduce_scatter_single`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter_single
    output: Tensor
    input: Tensor
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class ReduceScatterSinglePostHookArgs(PostHookArgs):
    """What came of `reduce_scatter_single`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter_single
    work: TorchWork | None


@dataclass(slots=True)
class AllToAllSinglePreHookArgs(PreHookArgs):
    """Arguments of `all_to_all_single`."""

    op_name: ClassVar[OpName] = OpName.all_to_all_single
    output: Tensor
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class AllToAllSinglePostHookArgs(PostHookArgs):
    """What came of `all_to_all_single`."""

    op_name: ClassVar[OpName] = OpName.all_to_all_single
    work: TorchWork | None


@dataclass(slots=True)
class AllToAllVSinglePreHookArgs(PreHookArgs):
    """Arguments of `all_to_all_v_single`."""

    op_name: ClassVar[OpName] = OpName.all_to_all_v_single
    output: Tensor
    input: Tensor
    output_split_sizes: list[int]
    input_split_sizes: list[int]
    async_op: bool


@dataclass(slots=True)
class AllToAllVSinglePostHookArgs(PostHookArgs):
    """What came of `all_to_all_v_single`."""

    op_name: ClassVar[OpName] = OpName.all_to_all_v_single
    work: TorchWork | None


@dataclass(slots=True)
class AllToAllPreHookArgs(PreHookArgs):
    """Arguments of `all_to_all`."""

    op_name: ClassVar[OpName] = OpName.all_to_all
    output: list[Tensor]
    input: list[Tensor]
    async_op: bool


@dataclass(slots=True)
class AllToAllPostHookArgs(PostHookArgs):
    """What came of `all_to_all`."""

    op_name: ClassVar[OpName] = OpName.all_to_all
    work: TorchWork | None


@dataclass(slots=True)
class BarrierPreHookArgs(PreHookArgs):
    """Arguments of `barrier`."""

    op_name: ClassVar[OpName] = OpName.barrier
    async_op: bool


@dataclass(slots=True)
class BarrierPostHookArgs(PostHookArgs):
    """What came of `barrier`."""

    op_name: ClassVar[OpName] = OpName.barrier
    work: TorchWork | None


@dataclass(slots=True)
class ScatterPreHookArgs(PreHookArgs):
    """Arguments of `scatter`."""

    op_name: ClassVar[OpName] = OpName.scatter
    output: Tensor
    input: list[Tensor]
    root: int
    async_op: bool


@dataclass(slots=True)
class ScatterPostHookArgs(PostHookArgs):
    """What came of `scatter`."""

    op_name: ClassVar[OpName] = OpName.scatter
    work: TorchWork | None


@dataclass(slots=True)
class GatherPreHookArgs(PreHookArgs):
    """Arguments of `gather`."""

    op_name: ClassVar[OpName] = OpName.gather
    output: list[Tensor]
    input: Tensor
    root: int
    async_op: bool


@dataclass(slots=True)
class GatherPostHookArgs(PostHookArgs):
    """What came of `gather`."""

    op_name: ClassVar[OpName] = OpName.gather
    work: TorchWork | None


@dataclass(slots=True)
class GatherSinglePreHookArgs(PreHookArgs):
    """Arguments of `gather_single`."""

    op_name: ClassVar[OpName] = OpName.gather_single
    output: Tensor | None
    input: Tensor
    root: int
    async_op: bool


@dataclass(slots=True)
class GatherSinglePostHookArgs(PostHookArgs):
    """What came of `gather_single`."""

    op_name: ClassVar[OpName] = OpName.gather_single
    work: TorchWork | None


@dataclass(slots=True)
class SplitPreHookArgs(PreHookArgs):
    """Arguments of `split`."""

    op_name: ClassVar[OpName] = OpName.split
    ranks: list[int]
    name: str


@dataclass(slots=True)
class SplitPostHookArgs(PostHookArgs):
    """What came of `split`."""

    op_name: ClassVar[OpName] = OpName.split
    new_comm: TorchComm | None


@dataclass(slots=True)
class NewWindowPreHookArgs(PreHookArgs):
    """Arguments of `new_window`."""

    op_name: ClassVar[OpName] = OpName.new_window
    tensor: Tensor | None


@dataclass(slots=True)
class NewWindowPostHookArgs(PostHookArgs):
    """What came of `new_window`."""

    op_name: ClassVar[OpName] = OpName.new_window
    new_window: object | None


@dataclass(slots=True)
class FinalizePreHookArgs(PreHookArgs):
    """Arguments of `finalize`."""

    op_name: ClassVar[OpName] = OpName.finalize


@dataclass(slots=True)
class FinalizePostHookArgs(PostHookArgs):
    """What came of `finalize`."""

    op_name: ClassVar[OpName] = OpName.finalize


PRE: tuple[type[PreHookArgs], ...] = (
    SendPreHookArgs,
    RecvPreHookArgs,
    BroadcastPreHookArgs,
    AllReducePreHookArgs,
    ReducePreHookArgs,
    AllGatherPreHookArgs,
    AllGatherVPreHookArgs,
    AllGatherSinglePreHookArgs,
    ReduceScatterPreHookArgs,
    ReduceScatterVPreHookArgs,
    ReduceScatterSinglePreHookArgs,
    AllToAllSinglePreHookArgs,
    AllToAllVSinglePreHookArgs,
    AllToAllPreHookArgs,
    BarrierPreHookArgs,
    ScatterPreHookArgs,
    GatherPreHookArgs,
    GatherSinglePreHookArgs,
    SplitPreHookArgs,
    NewWindowPreHookArgs,
    FinalizePreHookArgs,
)
POST: tuple[type[PostHookArgs], ...] = (
    SendPostHookArgs,
    RecvPostHookArgs,
    BroadcastPostHookArgs,
    AllReducePostHookArgs,
    ReducePostHookArgs,
    AllGatherPostHookArgs,
    AllGatherVPostHookArgs,
    AllGatherSinglePostHookArgs,
    ReduceScatterPostHookArgs,
    ReduceScatterVPostHookArgs,
    ReduceScatterSinglePostHookArgs,
    AllToAllSinglePostHookArgs,
    AllToAllVSinglePostHookArgs,
    AllToAllPostHookArgs,
    BarrierPostHookArgs,
    ScatterPostHookArgs,
    GatherPostHookArgs,
    GatherSinglePostHookArgs,
    SplitPostHookArgs,
    NewWindowPostHookArgs,
    FinalizePostHookArgs,
)

__all__ = [
    "AllGatherPostHookArgs",
    "AllGatherPreHookArgs",
    "AllGatherSinglePostHookArgs",
    "AllGatherSinglePreHookArgs",
    "AllGatherVPostHookArgs",
    "AllGatherVPreHookArgs",
    "AllReducePostHookArgs",
    "AllReducePreHookArgs",
    "AllToAllPostHookArgs",
    "AllToAllPreHookArgs",
    "AllToAllSinglePostHookArgs",
    "AllToAllSinglePreHookArgs",
    "AllToAllVSinglePostHookArgs",
    "AllToAllVSinglePreHookArgs",
    "BarrierPostHookArgs",
    "BarrierPreHookArgs",
    "BroadcastPostHookArgs",
    "BroadcastPreHookArgs",
    "FinalizePostHookArgs",
    "FinalizePreHookArgs",
    "GatherPostHookArgs",
    "GatherPreHookArgs",
    "GatherSinglePostHookArgs",
    "GatherSinglePreHookArgs",
    "NewWindowPostHookArgs",
    "NewWindowPreHookArgs",
    "OpName",
    "PostHookArgs",
    "PreHookArgs",
    "RecvPostHookArgs",
    "RecvPreHookArgs",
    "ReducePostHookArgs",
    "ReducePreHookArgs",
    "ReduceScatterPostHookArgs",
    "ReduceScatterPreHookArgs",
    "ReduceScatterSinglePostHookArgs",
    "ReduceScatterSinglePreHookArgs",
    "ReduceScatterVPostHookArgs",
    "ReduceScatterVPreHookArgs",
    "ScatterPostHookArgs",
    "ScatterPreHookArgs",
    "SendPostHookArgs",
    "SendPreHookArgs",
    "SplitPostHookArgs",
    "SplitPreHookArgs",
]
