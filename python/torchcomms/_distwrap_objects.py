"""The object collectives of `distwrap`: torch.distributed's arguments, `objcol`'s work.

Must not know how objects travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as _dist
from torch.distributed import distributed_c10d as _c10d

from torchcomms import _groups, objcol
from torchcomms._comms import TorchComm
from torchcomms._groups import group_rank


def all_gather_object(
    object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False
) -> None:
    """As torch.distributed's."""
    comm = _comm(group)
    if comm is None:
        _dist.all_gather_object(object_list, obj, group, weights_only)
    else:
        objcol.all_gather_object(comm, object_list, obj, weights_only=weights_only)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """As torch.distributed's."""
    comm = _comm(group)
    if comm is None:
        _dist.gather_object(obj, object_gather_list, dst, group, group_dst, weights_only)
    else:
        root = group_rank(group, dst, group_dst, "dst", default=0)
        objcol.gather_object(comm, obj, root, object_gather_list, weights_only=weights_only)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """As torch.distributed's."""
    comm = _comm(group)
    if comm is None:
        _dist.broadcast_object_list(object_list, src, group, device, group_src, weights_only)
    else:
        root = group_rank(group, src, group_src, "src", default=0)
        objcol.broadcast_object_list(comm, object_list, root, weights_only=weights_only)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """As torch.distributed's."""
    comm = _comm(group)
    if comm is None:
        _dist.scatter_object_list(
            scatter_object_output_list, scatter_object_input_list, src, group, group_src
        )
        return
    root = group_rank(group, src, group_src, "src", default=0)
    objcol.scatter_object_list(
        comm,
        root,
        scatter_object_output_list,
        scatter_object_input_list,
        weights_only=weights_only,
    )


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """As torch.distributed's; both sides use this module."""
    comm = _comm(group)
    if comm is None:
        _dist.send_object_list(object_list, dst, group, device, group_dst, use_batch, weights_only)
    else:
        objcol.send_object_list(comm, object_list, group_rank(group, dst, group_dst, "dst"))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """As torch.distributed's, from a rank that is named; both sides use this module."""
    comm = _comm(group)
    if comm is None:
        return int(
            _dist.recv_object_list(
                object_list, src, group, device, group_src, use_batch, weights_only
            )
        )
    peer = group_rank(group, src, group_src, "src")
    objcol.recv_object_list(comm, object_list, peer, weights_only=weights_only)
    return int(_dist.get_global_rank(group or _c10d._get_default_group(), peer))


def _comm(group: Any) -> TorchComm | None:
    if group is _dist.GroupMember.NON_GROUP_MEMBER:
        return None
    return _groups.comm_of(group or _c10d._get_default_group())
