"""DeviceMesh over communicators: each dimension of the mesh is served by a communicator given.

The mesh is torch's own class, and what is built on it (DDP, FSDP2, DTensor) runs on the
communicators. Must not know engines or how torch registers groups: that is `_groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import torchcomms
from torchcomms import _groups

if TYPE_CHECKING:
    from torchcomms._comms import TorchComm

__all__ = ["init_device_mesh"]


def init_device_mesh(
    mesh_dim_comms: Sequence[TorchComm],
    mesh_dim_names: Sequence[str],
    _global_comm: TorchComm | None = None,
) -> DeviceMesh:
    """A mesh whose dimension i runs over `mesh_dim_comms[i]`. Collective over all ranks of it.

    The coordinate of a rank in a dimension is its rank in that dimension's communicator, so ranks
    may lie in the mesh in any order. When torch.distributed has no default group, `_global_comm`
    becomes it; without one, the only communicator does, or one that is made over the launcher's
    ranks. `torch.distributed.destroy_process_group()` then finalizes all of them; a communicator
    may also be finalized by its owner.

    Args:
        mesh_dim_comms: a communicator per dimension, all on the same kind of device.
        mesh_dim_names: a name per dimension, each once.
        _global_comm: all ranks of the mesh.

    Raises:
        ValueError: the communicators do not span a mesh: on all ranks, with their coordinates.
        TypeError: an entry is no communicator, such as what `split` gives a rank outside.
    """
    comms = list(mesh_dim_comms)
    names = tuple(mesh_dim_names)
    _check(comms, names)
    world = _with_default_group(comms, _global_comm)
    mesh = _placed(comms, world)
    groups = []
    for dim, comm in enumerate(comms):
        place: list[Any] = [other.get_rank() for other in comms]
        place[dim] = slice(None)
        groups.append(_groups.make([comm], mesh[tuple(place)].tolist()))
    kind = comms[0].get_device().type
    only = groups[0] if len(groups) == 1 else groups
    return DeviceMesh.from_group(only, kind, mesh, mesh_dim_names=names)


def _flatten_with_comm(
    mesh: DeviceMesh,
    mesh_dim_name: str,
    comm: TorchComm,
    global_ranks: Sequence[int],
    layout: Any = None,
) -> DeviceMesh:
    """Flattens dimensions of a mesh into one that `comm` serves; `mesh[mesh_dim_name]` gives it.

    Args:
        mesh: the mesh, or the slice of it that is flattened when no layout is given.
        mesh_dim_name: a name that the mesh does not have.
        comm: its rank r is the r-th of the flattened dimension.
        global_ranks: the ranks of the dimension that this rank is in, in order.
        layout: torch's layout of the flattened dimension. Without one: all of `mesh`.

    Raises:
        ValueError: the name is taken, or ranks, layout and communicator do not fit each other.
    """
    root = mesh._get_root_mesh()
    if mesh_dim_name in (root.mesh_dim_names or ()) or mesh_dim_name in root._flatten_mapping:
        raise ValueError(f"the mesh has a dimension {mesh_dim_name!r} already: choose another name")
    flat = DeviceMesh(
        root.device_type,
        _layout=_collapsed(mesh._layout if layout is None else layout),
        _rank_map=root._rank_map,
        mesh_dim_names=(mesh_dim_name,),
        _root_mesh=root,
        _init_backend=False,
    )
    ranks = list(global_ranks)
    if flat.mesh.tolist() != ranks or comm.get_size() != len(ranks):
        raise ValueError(
            f"dimension {mesh_dim_name!r} does not fit: the layout gives ranks "
            f"{flat.mesh.tolist()} here, global_ranks are {ranks}, and the communicator has "
            f"{comm.get_size()} ranks: pass the same ranks as to comm.split"
        )
    group = _groups.make([comm], ranks)
    flat._dim_group_names = [group.group_name]
    root._pg_registry[group.group_name] = group
    root._flatten_mapping[mesh_dim_name] = flat
    return flat


def _collapsed(layout: Any) -> Any:
    """One dimension made of all those of `layout`, in the form of the running torch."""
    if hasattr(layout, "collapse"):
        return type(layout)([layout.collapse()])
    return layout.coalesce()  # torch 2.14


def _check(comms: list[TorchComm], names: tuple[str, ...]) -> None:
    if not comms or len(comms) != len(names):
        raise ValueError(
            f"mesh_dim_comms has {len(comms)} entries and mesh_dim_names {len(names)}: expected "
            "one name for each of one or more communicators"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"mesh_dim_names are {names}: expected each name once")
    for name, comm in zip(names, comms, strict=True):
        if not isinstance(comm, torchcomms.TorchComm):
            raise TypeError(f"dimension {name!r} has no communicator, got {comm!r}")
    kinds = {comm.get_device().type for comm in comms}
    if len(kinds) != 1:
        raise ValueError(f"the communicators are on {sorted(kinds)}: expected one kind of device")


def _with_default_group(comms: list[TorchComm], world: TorchComm | None) -> TorchComm | None:
    """The communicator over all ranks; None when the default group has to do."""
    if dist.is_initialized():
        return world
    if world is None:
        world = comms[0] if len(comms) == 1 else _launched(comms[0])
    _groups.make_default(world)
    return world


def _launched(like: TorchComm) -> TorchComm:
    return torchcomms.new_comm(
        like.get_backend(),
        like.get_device(),
        timeout=like.get_timeout(),
        name=f"{like.get_name()}/mesh",
    )


def _placed(comms: list[TorchComm], world: TorchComm | None) -> torch.Tensor:
    """The global rank at each coordinate, from what every rank says of itself."""
    shape = tuple(comm.get_size() for comm in comms)
    here = [comm.get_rank() for comm in comms]
    device = comms[0].get_device()
    mine = torch.tensor([dist.get_rank(), *here, *shape], dtype=torch.int64, device=device)
    size = dist.get_world_size() if world is None else world.get_size()
    table = torch.empty(size * mine.numel(), dtype=torch.int64, device=device)
    if world is None:
        dist.all_gather_into_tensor(table, mine)
    else:
        world.all_gather_single(table, mine)
    rows: list[list[int]] = table.view(size, mine.numel()).tolist()
    mesh = torch.full(shape, -1, dtype=torch.int)
    dims = len(shape)
    fits = size == mesh.numel() and all(tuple(row[1 + dims :]) == shape for row in rows)
    if fits:
        for rank, *place in (row[: 1 + dims] for row in rows):
            mesh[tuple(place)] = rank
    if not fits or bool((mesh < 0).any()):
        places = {row[0]: tuple(row[1 : 1 + dims]) for row in rows}
        raise ValueError(
            f"the communicators do not span a mesh: {size} ranks, sizes {shape} here, and these "
            f"coordinates by rank: {places}: expected every coordinate once"
        )
    return mesh
