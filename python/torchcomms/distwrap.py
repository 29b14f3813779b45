"""The call surface of torch.distributed, right on communicators.

    from torchcomms import distwrap as dist
    dist.init_process_group("gloo", use_torchcomms=True)

A call for a group that a communicator serves goes to the communicator, without torch's layers in
between; asynchronous ones return its `TorchWork`. Other groups, and calls that a communicator does
not know (tags, receiving from anyone), go through torch.distributed, on the same communicators.
Names that are not defined here are torch.distributed's own. Must not know engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as _dist
from torch.distributed import config as _config
from torch.distributed import distributed_c10d as _c10d

from torchcomms import _groups
from torchcomms._distwrap_objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from torchcomms._groups import group_rank as _group_rank

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms._comms import TorchComm

# A process group of torch.distributed, None for the default one, or what torch gives a rank that
# is not in a group.
Group = Any

__all__ = [
    "P2POp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_torchcomms_instance",
    "init_process_group",
    "irecv",
    "isend",
    "new_group",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
]

_SUM = _dist.ReduceOp.SUM


def __getattr__(name: str) -> Any:
    return getattr(_dist, name)


# ---- groups


def init_process_group(*arguments: Any, use_torchcomms: bool | None = None, **options: Any) -> None:
    """`torch.distributed.init_process_group`, with or without communicators.

    Args:
        *arguments: those of torch.distributed.
        use_torchcomms: whether communicators serve the group. Without one: what
            `torch.distributed.config.use_torchcomms` says.
        **options: those of torch.distributed.

    Raises:
        RuntimeError: communicators were asked for and cannot serve any device of this group.
    """
    wanted = bool(_config.use_torchcomms) if use_torchcomms is None else use_torchcomms
    if wanted and not getattr(_c10d, "_TORCHCOMM_AVAILABLE", False):
        raise RuntimeError(
            "torch did not find torchcomms when torch.distributed was imported, so communicators "
            "cannot serve: see python -m torchcomms info"
        )
    with _switched(wanted):
        _dist.init_process_group(*arguments, **options)
    if use_torchcomms and not _groups.comms_of(_default()):
        _dist.destroy_process_group()
        raise RuntimeError(
            f"no communicator serves this group: expected one of the backends "
            f"{', '.join(_built())}, got {arguments[:1] or options.get('backend')!r}"
        )


def new_group(*arguments: Any, **options: Any) -> Group:
    """`torch.distributed.new_group`; communicators serve it if they serve the default group."""
    with _switched(bool(_groups.comms_of(_default()))):
        return _dist.new_group(*arguments, **options)


def split_group(
    parent_pg: Group = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **options: Any,
) -> Group:
    """Splits a group; each list in `split_ranks` has ranks of the parent, in the order they get.

    Every rank of the parent calls it. One that is in no list gets `GroupMember.NON_GROUP_MEMBER`.
    Each communicator of the parent is split, and no device has to be bound to it.

    Raises:
        ValueError: no lists, or a rank in two of them.
    """
    parent = parent_pg or _default()
    comms = _groups.comms_of(parent)
    lists = [list(ranks) for ranks in split_ranks or ()]
    if not comms:
        return _dist.split_group(parent_pg, lists, timeout, pg_options, group_desc, **options)
    flat = [rank for ranks in lists for rank in ranks]
    if not flat or len(set(flat)) != len(flat):
        raise ValueError(f"split_ranks is {lists}: expected lists of ranks, each rank at most once")
    mine: list[int] = next((ranks for ranks in lists if parent.rank() in ranks), [])
    name = f"{parent.group_name}/{group_desc or 'split'}"
    parts = [comm.split(mine, name, timeout=timeout) for comm in comms]
    if not mine:
        return _dist.GroupMember.NON_GROUP_MEMBER
    parent_ranks = _dist.get_process_group_ranks(parent)
    members = [part for part in parts if part is not None]
    return _groups.make(members, [parent_ranks[rank] for rank in mine], group_desc or "")


def destroy_process_group(group: Group = None) -> None:
    """Ends a group and its communicators; without one, all groups."""
    _dist.destroy_process_group(group)


def get_torchcomms_instance(
    group: Group = None,
    tensor: Tensor | None = None,
    device: torch.device | str | None = None,
) -> TorchComm:
    """The communicator that serves a group, for the device of `tensor` or `device` if given.

    Raises:
        RuntimeError: torch's own backend serves it.
    """
    where = tensor.device if tensor is not None else device
    comm = _groups.comm_of(group or _default(), where)
    if comm is None:
        raise RuntimeError(
            f"no communicator serves this group{f' on {where}' if where is not None else ''}: "
            "make it with init_process_group(use_torchcomms=True)"
        )
    return comm


# ---- collectives


def all_reduce(tensor: Tensor, op: Any = _SUM, group: Group = None, async_op: bool = False) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.all_reduce(tensor, op, group, async_op)
    return _result(comm.all_reduce(tensor, op, async_op), async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Any = _SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.reduce(tensor, dst, op, group, async_op, group_dst)
    root = _group_rank(group, dst, group_dst, "dst")
    return _result(comm.reduce(tensor, root, op, async_op), async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.broadcast(tensor, src, group, async_op, group_src)
    root = _group_rank(group, src, group_src, "src")
    return _result(comm.broadcast(tensor, root, async_op), async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.all_gather(tensor_list, tensor, group, async_op)
    return _result(comm.all_gather(tensor_list, tensor, async_op), async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, input_tensor)
    if comm is None:
        return _dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
    return _result(comm.all_gather_single(output_tensor, input_tensor, async_op), async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Any = _SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, output)
    if comm is None:
        return _dist.reduce_scatter(output, input_list, op, group, async_op)
    return _result(comm.reduce_scatter(output, input_list, op, async_op), async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = _SUM, group: Group = None, async_op: bool = False
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, input)
    if comm is None:
        return _dist.reduce_scatter_tensor(output, input, op, group, async_op)
    return _result(comm.reduce_scatter_single(output, input, op, async_op), async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, input_tensor_list[0] if input_tensor_list else None)
    if comm is None:
        return _dist.all_to_all(output_tensor_list, input_tensor_list, group, async_op)
    return _result(comm.all_to_all(output_tensor_list, input_tensor_list, async_op), async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, input)
    if comm is None:
        return _dist.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group, async_op
        )
    if not output_split_sizes and not input_split_sizes:
        return _result(comm.all_to_all_single(output, input, async_op), async_op)
    size = comm.get_size()
    received = output_split_sizes or [output.shape[0] // size] * size
    sent = input_split_sizes or [input.shape[0] // size] * size
    return _result(comm.all_to_all_v_single(output, input, received, sent, async_op), async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.scatter(tensor, scatter_list, src, group, async_op, group_src)
    root = _group_rank(group, src, group_src, "src", default=0)
    return _result(comm.scatter(tensor, scatter_list or [], root, async_op), async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.gather(tensor, gather_list, dst, group, async_op, group_dst)
    root = _group_rank(group, dst, group_dst, "dst", default=0)
    return _result(comm.gather(gather_list or [], tensor, root, async_op), async_op)


def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None:
        return _dist.gather_single(tensor, gather_tensor, dst, group, async_op, group_dst)
    root = _group_rank(group, dst, group_dst, "dst", default=0)
    if comm.get_rank() == root and gather_tensor is None:
        raise ValueError("gather_single: gather_tensor is missing on the destination rank")
    output = tensor.new_empty(0) if gather_tensor is None else gather_tensor
    return _result(comm.gather_single(output, tensor, root, async_op), async_op)


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    **options: Any,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, None)
    if comm is None:
        return _dist.barrier(group, async_op, device_ids, **options)
    return _result(comm.barrier(async_op, timeout=options.get("timeout")), async_op)


all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor
gather_into_tensor = gather_single


# ---- point-to-point


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None or tag:
        _dist.send(tensor, dst, group, tag, group_dst)
    else:
        comm.send(tensor, _group_rank(group, dst, group_dst, "dst"), async_op=False)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """As torch.distributed's: the global rank of the sender."""
    comm = _comm(group, tensor)
    if comm is None or tag or (src is None and group_src is None):
        return int(_dist.recv(tensor, src, group, tag, group_src))
    peer = _group_rank(group, src, group_src, "src")
    comm.recv(tensor, peer, async_op=False)
    return int(_dist.get_global_rank(group or _default(), peer))


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None or tag:
        return _dist.isend(tensor, dst, group, tag, group_dst)
    return comm.send(tensor, _group_rank(group, dst, group_dst, "dst"), async_op=True)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Any:
    """As torch.distributed's."""
    comm = _comm(group, tensor)
    if comm is None or tag or (src is None and group_src is None):
        return _dist.irecv(tensor, src, group, tag, group_src)
    return comm.recv(tensor, _group_rank(group, src, group_src, "src"), async_op=True)


class P2POp:
    """A send or a receive for `batch_isend_irecv`; arguments as torch.distributed's.

    `op` is `isend` or `irecv`, of this module or of torch.distributed.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        """Takes what torch.distributed's takes."""
        if op not in (isend, irecv, _dist.isend, _dist.irecv):
            raise ValueError(f"op is {op!r}: expected isend or irecv")
        self.sends = op in (isend, _dist.isend)
        self.op = isend if self.sends else irecv
        self.tensor = tensor
        self.group = group
        self.tag = tag
        self.group_peer = _group_rank(group, peer, group_peer, "peer")

    def as_torch(self) -> _dist.P2POp:
        """The same for torch.distributed."""
        op = _dist.isend if self.sends else _dist.irecv
        return _dist.P2POp(
            op, self.tensor, group=self.group, tag=self.tag, group_peer=self.group_peer
        )


def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
    """As torch.distributed's; a work for each communicator that the operations run on."""
    if not p2p_op_list:
        raise ValueError("batch_isend_irecv: the list is empty: expected P2POp")
    ops = [op for op in p2p_op_list if isinstance(op, P2POp)]
    comms = [_comm(op.group, op.tensor) for op in ops]
    if len(ops) < len(p2p_op_list) or None in comms or any(op.tag for op in ops):
        plain = [op.as_torch() if isinstance(op, P2POp) else op for op in p2p_op_list]
        return list(_dist.batch_isend_irecv(plain))
    batches: dict[int, Any] = {}
    for op, comm in zip(ops, comms, strict=True):
        if comm is None:
            continue
        batch = batches.setdefault(id(comm), comm.batch_op_create())
        (batch.send if op.sends else batch.recv)(op.tensor, op.group_peer)
    return [batch.issue(async_op=True) for batch in batches.values()]


# ---- helpers


def _default() -> Any:
    return _c10d._get_default_group()


def _built() -> list[str]:
    from torchcomms import _backends

    return _backends.built()


def _comm(group: Group, tensor: Tensor | None) -> TorchComm | None:
    """The communicator for this call; None when torch.distributed is to make it."""
    if group is _dist.GroupMember.NON_GROUP_MEMBER:
        return None
    return _groups.comm_of(group or _default(), None if tensor is None else tensor.device)


def _result(work: Any, async_op: bool) -> Any:
    return work if async_op else None


@contextmanager
def _switched(on: bool) -> Iterator[None]:
    before = _config.use_torchcomms
    _config.use_torchcomms = on
    try:
        yield
    finally:
        _config.use_torchcomms = before
