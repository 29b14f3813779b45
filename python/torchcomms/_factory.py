"""The body of `new_comm`: turns what callers and launchers say into one call of the extension.

Checks arguments, finds rank, size, store and time-out. Imported with the first communicator, when
torch is there: what this module imports, no later call looks for. Must not know how ranks join or
how data moves: that is the engine's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import Store

from torchcomms import (
    _backends,
    _comms,
    _compile,
    _cuda,
    _options,
    _python_backend,
    _ranks,
    _stores,
    _torch_log,
)

if TYPE_CHECKING:
    from torchcomms._comms import TorchComm

DEFAULT_TIMEOUT = timedelta(seconds=600)
# What is longer counts as this; as in cpp/time_limit.hpp.
LONGEST_TIMEOUT = timedelta(days=36_500)
TIMEOUT_VARIABLE = "TORCHCOMM_TIMEOUT_SECONDS"

_C10D_MODULE = "torch.distributed.distributed_c10d"
_C10D_FUNCTION = "_new_process_group_helper"
# new_comm <- _create_torchcomms_backend <- _new_process_group_helper, and room for a decorator.
_C10D_DEPTH = 8

_lock = threading.Lock()
_unnamed = 0

# Here because torch's notice of the first group comes before this module is asked for.
_torch_log.say_once()


def create(
    backend: str,
    device: torch.device | str,
    *,
    timeout: timedelta | None,
    store: Store | None,
    name: str | None,
    enable_reconfigure: bool,
    hints: Mapping[str, str] | None,
    abort_process: bool | None = None,
) -> TorchComm:
    """Joins the ranks of the job into a communicator; see `torchcomms.new_comm`."""
    _compile.prepare()
    foreign = _python_backend.find(backend)
    if foreign is not None:
        return _create_foreign(
            backend.lower(),
            foreign,
            torch.device(device),
            timeout=timeout,
            store=store,
            name=name,
            hints=hints,
            abort_process=abort_process,
            enable_reconfigure=enable_reconfigure,
        )
    engine = _backends.resolve(backend)
    device = torch.device(device)
    _backends.check_device(engine, device.type)
    checked_hints = _checked_hints(hints)
    position = _unconfigured_position() if enable_reconfigure else _ranks.rank_and_size()
    if engine == "nccl":
        _cuda.locate()
        device = _cuda.with_index(device, position.rank)
        checked_hints.setdefault(_cuda.ABORT_HINT, _cuda.abort_process(abort_process))
    limit = _limit(timeout, store)
    label = _next_name() if name is None else str(name)
    if enable_reconfigure:
        return unconfigured(engine, device, label, position, limit, checked_hints)
    if store is None:
        joined_store = _stores.shared(label, position.rank, position.size, limit)
    else:
        joined_store = _stores.attempt(_checked_store(store))
    return join(engine, device, label, joined_store, position, limit, checked_hints)


def _create_foreign(
    backend: str,
    cls: type[_python_backend.TorchCommBackend],
    device: torch.device,
    *,
    timeout: timedelta | None,
    store: Store | None,
    name: str | None,
    hints: Mapping[str, str] | None,
    abort_process: bool | None,
    enable_reconfigure: bool,
) -> TorchComm:
    """A communicator that a backend written in Python serves."""
    if device.type not in cls.devices:
        raise ValueError(
            f"backend {backend!r} serves {', '.join(cls.devices)} tensors, got device "
            f"{device.type!r}"
        )
    if enable_reconfigure:
        raise NotImplementedError(
            f"enable_reconfigure: the backend {backend!r} is written in Python, whose members are "
            "fixed; use gloo or nccl"
        )
    position = _ranks.rank_and_size()
    limit = _limit(timeout, store)
    label = _next_name() if name is None else str(name)
    if store is None:
        joined_store = _stores.shared(label, position.rank, position.size, limit)
    else:
        joined_store = _stores.attempt(_checked_store(store))
    options = _options.CommOptions(
        timeout=limit,
        hints=_checked_hints(hints),
        abort_process_on_timeout_or_error=abort_process,
        enable_reconfigure=enable_reconfigure,
        store=joined_store,
        name=label,
        rank=position.rank,
        size=position.size,
    )
    return _python_backend.create(backend, cls, device, options)


def _unconfigured_position() -> _ranks.RankSize:
    """The launcher's, where there is one: a process that comes later needs none."""
    try:
        return _ranks.rank_and_size()
    except ValueError:
        return _ranks.RankSize(0, 1)


def unconfigured(
    backend: str,
    device: torch.device,
    name: str,
    position: _ranks.RankSize,
    timeout: timedelta,
    hints: dict[str, str],
) -> TorchComm:
    """The call of the extension for a communicator that `reconfigure` gives its members."""
    return _comms._new_unconfigured_comm(
        backend,
        device,
        name,
        position.rank,
        position.size,
        milliseconds(timeout),
        hints,
    )


def join(
    backend: str,
    device: torch.device,
    name: str,
    store: Store,
    position: _ranks.RankSize,
    timeout: timedelta,
    hints: dict[str, str],
) -> TorchComm:
    """The call of the extension, with every argument decided."""
    return _comms._new_comm(
        backend,
        device,
        name,
        store,
        position.rank,
        position.size,
        milliseconds(timeout),
        hints,
    )


def milliseconds(timeout: timedelta) -> int:
    """Whole milliseconds, at least one and no more than 100 years of them.

    Raises:
        TypeError: not a timedelta.
        ValueError: not positive.
    """
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout must be a timedelta, got {type(timeout).__name__} {timeout!r}")
    if timeout <= timedelta(0):
        # torch counts microseconds in 64 bits, and what does not fit comes out as anything.
        wrapped = timeout < -LONGEST_TIMEOUT
        remedy = "; torch can hand over no more than 106751991 days" if wrapped else ""
        raise ValueError(f"timeout must be positive, got {timeout.total_seconds():g} s{remedy}")
    return max(1, min(timeout, LONGEST_TIMEOUT) // timedelta(milliseconds=1))


def _limit(timeout: timedelta | None, store: Store | None) -> timedelta:
    """The communicator's default time-out, no more than 100 years.

    The caller's; else, when torch.distributed makes the group, the group's; else
    TORCHCOMM_TIMEOUT_SECONDS; else 600 s.
    """
    if timeout is not None:
        milliseconds(timeout)
        return min(timeout, LONGEST_TIMEOUT)
    group_timeout = _process_group_timeout(store)
    if group_timeout is not None:
        return min(group_timeout, LONGEST_TIMEOUT)
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e9:
        raise ValueError(f"{TIMEOUT_VARIABLE}={text!r}: expected a positive number of seconds")
    return timedelta(seconds=seconds)


def _process_group_timeout(store: Store | None) -> timedelta | None:
    """Time-out of the process group torch is making, None when the call does not come from torch.

    torch hands `init_process_group(timeout=)` and `new_group(timeout=)` neither to new_comm nor to
    the wrapper. The store carries it only when torch made the store itself, and carries 300 s of
    its own otherwise, which would cut operations short that the stock backend lets run. So it is
    read where it stands: in the frame of the function of torch that makes the group. Where that
    function changed its name, the store's answer is the next best.
    """
    frame = sys._getframe(1)
    for _ in range(_C10D_DEPTH):
        caller = frame.f_back
        if caller is None:
            return None
        frame = caller
        if frame.f_globals.get("__name__") != _C10D_MODULE:
            continue
        if frame.f_code.co_name == _C10D_FUNCTION:
            timeout = frame.f_locals.get("timeout")
            if isinstance(timeout, timedelta) and timeout > timedelta(0):
                return timeout
            return _store_timeout(store)
    return None


def _store_timeout(store: Store | None) -> timedelta | None:
    timeout = getattr(store, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else None


def _next_name() -> str:
    global _unnamed
    with _lock:
        _unnamed += 1
        return f"comm{_unnamed}"


def _checked_store(store: Store) -> Store:
    if not isinstance(store, Store):
        raise TypeError(
            f"store must be a torch.distributed.Store, got {type(store).__name__} {store!r}"
        )
    return store


def _checked_hints(hints: Mapping[str, str] | None) -> dict[str, str]:
    if hints is not None and not isinstance(hints, Mapping):
        raise TypeError(f"hints must map str to str, got {type(hints).__name__} {hints!r}")
    checked: dict[str, str] = {}
    for key, value in (hints or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"hints must map str to str, got {key!r}: {value!r}")
        checked[key] = value
    return checked
