"""Backends of torch.distributed that this package registers under its own entry points.

`ferrocomm` is the engine by its own name, so that `init_process_group("cpu:ferrocomm")` needs no
switch. `ncclx` is registered to say clearly that it is not supported, instead of torch's "unknown
backend". torch loads the entry points of group `torch.distributed.backends` from 2.14 on, when a
name is first used. Must not know how ranks join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Backend

from torchcomms import _backends, _factory, _ranks, _stores
from torchcomms._comms import _BackendWrapper

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions


def register_ferrocomm() -> None:
    """Entry point `ferrocomm`."""
    Backend.register_backend("ferrocomm", _make_ferrocomm, extended_api=True, devices=["cpu"])


def register_ncclx() -> None:
    """Entry point `ncclx`."""
    Backend.register_backend("ncclx", _refuse_ncclx, extended_api=True, devices=["cuda"])


def _make_ferrocomm(options: _DistributedBackendOptions, _pg_options: Any) -> _BackendWrapper:
    comm = _factory.join(
        "gloo",
        torch.device("cpu"),
        options.group_id,
        _stores.attempt(options.store),
        _ranks.RankSize(options.group_rank, options.group_size),
        options.timeout,
        {},
    )
    # torch's flight recorder leaves what is called gloo to gloo's own recording.
    return _BackendWrapper(comm, name="ferrocomm")


def _refuse_ncclx(_options: _DistributedBackendOptions, _pg_options: Any) -> _BackendWrapper:
    _backends.resolve("ncclx")
    raise AssertionError("ncclx is refused by name")
