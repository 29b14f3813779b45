"""Process groups of torch.distributed that communicators of the caller's serve.

Makes them and enters them where torch looks groups up, so that DDP, FSDP and DeviceMesh take them
for any other. What is private in torch about that is here and nowhere else. Must not know meshes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from torchcomms import _comms, objcol

if TYPE_CHECKING:
    from torchcomms._comms import TorchComm

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def group_of(comm: TorchComm) -> ProcessGroup | None:
    """The live group that this very communicator serves."""
    for group in c10d._world.pg_map:
        for backend in _backends(group):
            if isinstance(backend, _comms._BackendWrapper) and backend.get_comm() is comm:
                return group
    return None


def comms_of(group: ProcessGroup) -> list[TorchComm]:
    """The communicators that serve `group`, one per kind of device, that of the CPU first."""
    found: list[TorchComm] = []
    for backend in _backends(group):
        if isinstance(backend, _comms._BackendWrapper):
            comm = backend.get_comm()
            if not any(comm is other for other in found):
                found.append(comm)
    return sorted(found, key=lambda comm: comm.get_device().type != "cpu")


def comm_of(group: ProcessGroup, device: torch.device | str | None = None) -> TorchComm | None:
    """The communicator that serves `group` on `device`, or on the CPU or another if it is None."""
    comms = comms_of(group)
    if device is None:
        return comms[0] if comms else None
    kind = torch.device(device).type
    return next((comm for comm in comms if comm.get_device().type == kind), None)


def group_rank(
    group: ProcessGroup | None,
    global_rank: int | None,
    rank: int | None,
    name: str,
    default: int | None = None,
) -> int:
    """A rank of `group`, from a global rank or a rank of it, whichever the caller gave.

    Raises:
        ValueError: both were given, or none where there is no `default`, a global rank.
    """
    if rank is not None:
        if global_rank is not None:
            raise ValueError(f"both {name} and group_{name} are given: expected one of them")
        return rank
    chosen = default if global_rank is None else global_rank
    if chosen is None:
        raise ValueError(f"neither {name} nor group_{name} is given: expected one of them")
    return int(c10d.get_group_rank(group or c10d._get_default_group(), chosen))


def make_default(comm: TorchComm) -> ProcessGroup:
    """Makes the default group, served by `comm`, where there is none. Collective over `comm`."""
    name = c10d._process_group_name([], use_hashed_name=False)
    group = _make([comm], name, list(range(comm.get_size())), _store_over(comm))
    c10d._update_default_pg(group)
    return group


def make(comms: Sequence[TorchComm], global_ranks: Sequence[int], desc: str = "") -> ProcessGroup:
    """The group that `comms`, one per kind of device, serve; made when there is none.

    `global_ranks[r]` is the rank in the default group of their rank r.
    """
    existing = group_of(comms[0])
    if existing is not None:
        return existing
    _, default_store = c10d._world.pg_map[c10d._get_default_group()]
    name = _free_name(comms[0].get_name())
    return _make(comms, name, global_ranks, PrefixStore(f"{name}/", default_store), desc)


def _make(
    comms: Sequence[TorchComm],
    name: str,
    global_ranks: Sequence[int],
    store: Store,
    desc: str = "",
) -> ProcessGroup:
    group = ProcessGroup(store, comms[0].get_rank(), comms[0].get_size())
    group._set_default_backend(_kind(comms[0]))
    for comm in comms:
        # Without the index: groups are asked for the device type of a tensor.
        device = torch.device(comm.get_device().type)
        group._register_backend(device, _kind(comm), _comms._BackendWrapper(comm))
    group._set_group_name(c10d.GroupName(name))
    group._set_group_desc(desc or comms[0].get_name())
    c10d._register_pg_in_world(
        group,
        backend_name=comms[0].get_backend(),
        store=store,
        group_name=c10d.GroupName(name),
        backend_config=",".join(f"{c.get_device().type}:{c.get_backend()}" for c in comms),
        rank_mapping={rank: index for index, rank in enumerate(global_ranks)},
        add_to_default_tag=True,
    )
    return group


def _kind(comm: TorchComm) -> Any:
    kinds = c10d.Backend.backend_type_map
    return kinds.get(comm.get_backend(), ProcessGroup.BackendType.CUSTOM)


def _free_name(wanted: str) -> str:
    """`wanted`, or with a number where a group has that name; the same on all ranks of a group.

    Ranks make their groups in the same order, and one that is elsewhere has other groups under
    names of its own.
    """
    taken = set(c10d._world.pg_names.values())
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}#{count}"
    return name


def _backends(group: ProcessGroup) -> list[Any]:
    return [_unwrapped(group._get_backend(device)) for device in group._device_types]


def _unwrapped(backend: Any) -> Any:
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checker around every backend.
    return getattr(backend, "wrapped_pg", backend)


def _store_over(comm: TorchComm) -> Store:
    """A store that all ranks of `comm` reach, for the groups that torch makes later by itself.

    Its first rank serves it. Where it is, is told over the communicator, so that no variable of a
    launcher is needed.
    """
    timeout = comm.get_timeout()
    host = _this_machine()
    if comm.get_rank() == 0:
        server = _served(timeout)
        where = [(host, _address(), server.port)]
        objcol.broadcast_object_list(comm, where, 0)
        return server
    told: list[Any] = [None]
    objcol.broadcast_object_list(comm, told, 0)
    server_host, address, port = told[0]
    reach = "127.0.0.1" if server_host == host else address
    return TCPStore(reach, port, is_master=False, timeout=timeout)


def _served(timeout: timedelta) -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout, wait_for_workers=False)


def _this_machine() -> str:
    """Boot and network namespace: ranks that share both reach each other by loopback."""
    with open(_BOOT_ID, encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _address() -> str:
    """Where other machines reach this one: by the interface that leads to MASTER_ADDR."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return socket.gethostname()
    kind, _, _, _, target = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        # Sends nothing: it only makes the kernel choose a route.
        probe.connect(target)
        return str(probe.getsockname()[0])
