"""What is installed, what can run here, and which engine serves which process group.

Asks the engine and torch; decides nothing. The answer is plain data that JSON can hold.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from torchcomms import _backends, _build_info, _comms, _cuda


def collect() -> dict[str, Any]:
    """Facts about this process, as plain data.

    `package`, `engine`, `abi`: versions. `torch`: `built_for` and `running`. `switch`: whether
    torch found this package and whether `use_torchcomms` is on. `backends`: `name`, `usable`,
    where it is not the `reason`, and the `findings` of its engine on this machine, such as NCCL's
    path and version. `transports`: names. `groups`: one entry per live process group of
    torch.distributed and device, with `served_by` (`ferrocomm`, `torch`, or `python` for a backend
    written in it). `communicators`: all that live in the engine, with state, transport and
    counters, whether a group has them or not.
    """
    _cuda.locate()
    engine = json.loads(_comms._engine_info())
    return {
        "package": _build_info.VERSION,
        "engine": engine["version"],
        "abi": engine["abi"],
        "torch": {"built_for": _comms._built_for_torch, "running": str(torch.__version__)},
        "switch": _switch(),
        "backends": _backend_facts(engine["backends"]),
        "transports": engine["transports"],
        "groups": _groups(),
        "communicators": engine["communicators"],
    }


def readable(facts: dict[str, Any]) -> str:
    """`collect()` as text for a terminal."""
    switch = facts["switch"]
    found = "found torchcomms" if switch["torch_found_torchcomms"] else "did NOT find torchcomms"
    on = "on" if switch["use_torchcomms"] else "off"
    lines = [
        f"package     ferrocomm {facts['package']} (imported as torchcomms)",
        f"engine      {facts['engine']}, C ABI {facts['abi']}",
        f"torch       built for {facts['torch']['built_for']}, running {facts['torch']['running']}",
        f"switch      torch {found}; use_torchcomms is {on}",
        f"transports  {', '.join(facts['transports'])}",
        "backends",
    ]
    for backend in facts["backends"]:
        state = "usable" if backend["usable"] else f"not usable: {backend['reason']}"
        lines.append(f"  {backend['name']:<10}{state}")
        lines += [f"            {name}: {text}" for name, text in backend["findings"].items()]
    lines.append("groups of torch.distributed in this process")
    lines += [_group_line(group) for group in facts["groups"]] or ["  none"]
    lines.append("communicators in this process")
    lines += [_communicator_line(comm) for comm in facts["communicators"]] or ["  none"]
    return "\n".join(lines)


def _switch() -> dict[str, bool]:
    from torch.distributed import config, distributed_c10d

    return {
        "torch_found_torchcomms": bool(getattr(distributed_c10d, "_TORCHCOMM_AVAILABLE", False)),
        "use_torchcomms": bool(getattr(config, "use_torchcomms", False)),
    }


def _backend_facts(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The backends by the names users ask for, each with what the engine says about it."""
    by_name = {name: engine for engine in engines for name in (engine["name"], *engine["aliases"])}
    facts = []
    for name in filter(_backends.is_own, _backends.built()):
        engine = by_name.get(name)
        reason = "the engine does not have it" if engine is None else engine["reason"]
        facts.append(
            {
                "name": name,
                "usable": engine is not None and engine["usable"],
                "reason": reason,
                "engine": None if engine is None else engine["name"],
                "findings": {} if engine is None else engine["findings"],
            }
        )
    for name, reason in _backends.unsupported().items():
        facts.append(
            {"name": name, "usable": False, "reason": reason, "engine": None, "findings": {}}
        )
    return facts


def _groups() -> list[dict[str, Any]]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    from torch.distributed.distributed_c10d import _world

    return [
        _group(group.group_name, device, group._get_backend(device))
        for group in _world.pg_map
        for device in group._device_types
    ]


def _group(name: str, device: torch.device, backend: Any) -> dict[str, Any]:
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checker around every backend.
    inner = getattr(backend, "wrapped_pg", backend)
    facts: dict[str, Any] = {
        "group": name,
        "device": device.type,
        "rank": inner.rank(),
        "size": inner.size(),
        "served_by": "torch",
        "backend": type(inner).__name__,
        "communicator": None,
    }
    if isinstance(inner, _comms._BackendWrapper):
        comm = inner.get_comm()
        if comm.get_backend_impl() is not comm:
            return facts | {"served_by": "python", "backend": comm.get_backend()}
        facts |= {
            "served_by": "ferrocomm",
            "backend": comm.get_backend(),
            "communicator": json.loads(comm.info()),
        }
    return facts


def _group_line(group: dict[str, Any]) -> str:
    line = (
        f"  {group['group']} {group['device']}: {group['served_by']} ({group['backend']}), "
        f"rank {group['rank']} of {group['size']}"
    )
    comm = group["communicator"]
    if comm is None:
        return line
    return f"{line}, engine {comm['engine']}, transport {comm['transport']}, {comm['state']}"


def _communicator_line(comm: dict[str, Any]) -> str:
    used = ", ".join(
        f"{name} {used['count']} ({used['bytes']} B)" for name, used in comm["operations"].items()
    )
    return (
        f"  {comm['name']}: {comm['engine']}, rank {comm['rank']} of {comm['size']}, "
        f"{comm['transport']}, {comm['state']}; {used or 'no operation yet'}"
    )
