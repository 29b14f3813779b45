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
class _PeerPreHookArgs(PreHookArgs):
    """Arguments of what goes to or comes from one other rank."""

    tensor: Tensor
    peer: int
    async_op: bool


@dataclass(slots=True)
class _GatherPreHookArgs(PreHookArgs):
    """Arguments of what gives every rank a list."""

    output: list[Tensor]
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class _SinglePreHookArgs(PreHookArgs):
    """Arguments of what takes and gives one tensor."""

    output: Tensor
    input: Tensor
    async_op: bool


@dataclass(slots=True)
class _ReduceScatterPreHookArgs(PreHookArgs):
    """Arguments of what combines lists."""

    output: Tensor
    input: list[Tensor]
    op: ReduceOp
    async_op: bool


@dataclass(slots=True)
class PostHookArgs:
    """What came of an operation that was issued."""

    op_name: ClassVar[OpName]


@dataclass(slots=True)
class _WorkPostHookArgs(PostHookArgs):
    """What came of an operation that has a work."""

    work: TorchWork | None


class SendPreHookArgs(_PeerPreHookArgs):
    """Arguments of `send`."""

    __slots__ = ()
    op_name = OpName.send


class SendPostHookArgs(_WorkPostHookArgs):
    """What came of `send`."""

    __slots__ = ()
    op_name = OpName.send


class RecvPreHookArgs(_PeerPreHookArgs):
    """Arguments of `recv`."""

    __slots__ = ()
    op_name = OpName.recv


class RecvPostHookArgs(_WorkPostHookArgs):
    """What came of `recv`."""

    __slots__ = ()
    op_name = OpName.recv


@dataclass(slots=True)
class BroadcastPreHookArgs(PreHookArgs):
    """Arguments of `broadcast`."""

    op_name: ClassVar[OpName] = OpName.broadcast
    tensor: Tensor
    root: int
    async_op: bool


class BroadcastPostHookArgs(_WorkPostHookArgs):
    """What came of `broadcast`."""

    __slots__ = ()
    op_name = OpName.broadcast


@dataclass(slots=True)
class AllReducePreHookArgs(PreHookArgs):
    """Arguments of `all_reduce`."""

    op_name: ClassVar[OpName] = OpName.all_reduce
    tensor: Tensor
    op: ReduceOp
    async_op: bool


class AllReducePostHookArgs(_WorkPostHookArgs):
    """What came of `all_reduce`."""

    __slots__ = ()
    op_name = OpName.all_reduce


@dataclass(slots=True)
class ReducePreHookArgs(PreHookArgs):
    """Arguments of `reduce`."""

    op_name: ClassVar[OpName] = OpName.reduce
    tensor: Tensor
    root: int
    op: ReduceOp
    async_op: bool


class ReducePostHookArgs(_WorkPostHookArgs):
    """What came of `reduce`."""

    __slots__ = ()
    op_name = OpName.reduce


class AllGatherPreHookArgs(_GatherPreHookArgs):
    """Arguments of `all_gather`."""

    __slots__ = ()
    op_name = OpName.all_gather


class AllGatherPostHookArgs(_WorkPostHookArgs):
    """What came of `all_gather`."""

    __slots__ = ()
    op_name = OpName.all_gather


class AllGatherVPreHookArgs(_GatherPreHookArgs):
    """Arguments of `all_gather_v`."""

    __slots__ = ()
    op_name = OpName.all_gather_v


class AllGatherVPostHookArgs(_WorkPostHookArgs):
    """What came of `all_gather_v`."""

    __slots__ = ()
    op_name = OpName.all_gather_v


class AllGatherSinglePreHookArgs(_SinglePreHookArgs):
    """Arguments of `all_gather_single`."""

    __slots__ = ()
    op_name = OpName.all_gather_single


class AllGatherSinglePostHookArgs(_WorkPostHookArgs):
    """What came of `all_gather_single`."""

    __slots__ = ()
    op_name = OpName.all_gather_single


class ReduceScatterPreHookArgs(_ReduceScatterPreHookArgs):
    """Arguments of `reduce_scatter`."""

    __slots__ = ()
    op_name = OpName.reduce_scatter


class ReduceScatterPostHookArgs(_WorkPostHookArgs):
    """What came of `reduce_scatter`."""

    __slots__ = ()
    op_name = OpName.reduce_scatter


class ReduceScatterVPreHookArgs(_ReduceScatterPreHookArgs):
    """Arguments of `reduce_scatter_v`."""

    __slots__ = ()
    op_name = OpName.reduce_scatter_v


class ReduceScatterVPostHookArgs(_WorkPostHookArgs):
    """What came of `reduce_scatter_v`."""

    __slots__ = ()
    op_name = OpName.reduce_scatter_v


@dataclass(slots=True)
class ReduceScatterSinglePreHookArgs(PreHookArgs):
    """Arguments of `reduce_scatter_single`."""

    op_name: ClassVar[OpName] = OpName.reduce_scatter_single
    output: Tensor
    input: Tensor
    op: ReduceOp
    async_op: bool


class ReduceScatterSinglePostHookArgs(_WorkPostHookArgs):
    """What came of `reduce_scatter_single`."""

    __slots__ = ()
    op_name = OpName.reduce_scatter_single


class AllToAllSinglePreHookArgs(_SinglePreHookArgs):
    """Arguments of `all_to_all_single`."""

    __slots__ = ()
    op_name = OpName.all_to_all_single


class AllToAllSinglePostHookArgs(_WorkPostHookArgs):
    """What came of `all_to_all_single`."""

    __slots__ = ()
    op_name = OpName.all_to_all_single


@dataclass(slots=True)
class AllToAllVSinglePreHookArgs(PreHookArgs):
    """Arguments of `all_to_all_v_single`."""

    op_name: ClassVar[OpName] = OpName.all_to_all_v_single
    output: Tensor
    input: Tensor
    output_split_sizes: list[int]
    input_split_sizes: list[int]
    async_op: bool


class AllToAllVSinglePostHookArgs(_WorkPostHookArgs):
    """What came of `all_to_all_v_single`."""

    __slots__ = ()
    op_name = OpName.all_to_all_v_single


@dataclass(slots=True)
class AllToAllPreHookArgs(PreHookArgs):
    """Arguments of `all_to_all`."""

    op_name: ClassVar[OpName] = OpName.all_to_all
    output: list[Tensor]
    input: list[Tensor]
    async_op: bool


class AllToAllPostHookArgs(_WorkPostHookArgs):
    """What came of `all_to_all`."""

    __slots__ = ()
    op_name = OpName.all_to_all


@dataclass(slots=True)
class BarrierPreHookArgs(PreHookArgs):
    """Arguments of `barrier`."""

    op_name: ClassVar[OpName] = OpName.barrier
    async_op: bool


class BarrierPostHookArgs(_WorkPostHookArgs):
    """What came of `barrier`."""

    __slots__ = ()
    op_name = OpName.barrier


@dataclass(slots=True)
class ScatterPreHookArgs(PreHookArgs):
    """Arguments of `scatter`."""

    op_name: ClassVar[OpName] = OpName.scatter
    output: Tensor
    input: list[Tensor]
    root: int
    async_op: bool


class ScatterPostHookArgs(_WorkPostHookArgs):
    """What came of `scatter`."""

    __slots__ = ()
    op_name = OpName.scatter


@dataclass(slots=True)
class GatherPreHookArgs(PreHookArgs):
    """Arguments of `gather`."""

    op_name: ClassVar[OpName] = OpName.gather
    output: list[Tensor]
    input: Tensor
    root: int
    async_op: bool


class GatherPostHookArgs(_WorkPostHookArgs):
    """What came of `gather`."""

    __slots__ = ()
    op_name = OpName.gather


@dataclass(slots=True)
class GatherSinglePreHookArgs(PreHookArgs):
    """Arguments of `gather_single`."""

    op_name: ClassVar[OpName] = OpName.gather_single
    output: Tensor | None
    input: Tensor
    root: int
    async_op: bool


class GatherSinglePostHookArgs(_WorkPostHookArgs):
    """What came of `gather_single`."""

    __slots__ = ()
    op_name = OpName.gather_single


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
