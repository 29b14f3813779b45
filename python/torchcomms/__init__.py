"""Collectives for PyTorch, served by Ferrocomm's engine.

`new_comm` makes a communicator; with `torch.distributed.config.use_torchcomms = True` the groups
of `torch.distributed` run through the same engine. `engine_info()` says which engine serves what.

The order in this file matters. torch imports this package while it is itself being imported, and
importing this package imports torch: whatever torch looks for here must be bound before the first
line that touches torch, or torch concludes without a word that there is no torchcomms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchcomms import _backends, _compile, _fit  # noqa: F401  (_compile reads its variable)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    import torch as _torch
    from torch._C._distributed_c10d import Store


def is_backend_built(name: str) -> bool:
    """Whether `new_comm(name, ...)` can make a communicator with this build."""
    return _backends.is_built(name)


def built_backends() -> list[str]:
    """Names that `new_comm` accepts, sorted."""
    return _backends.built()


def new_comm(
    backend: str,
    device: _torch.device | str,
    abort_process_on_timeout_or_error: bool | None = None,
    timeout: timedelta | None = None,
    store: Store | None = None,
    name: str | None = None,
    enable_reconfigure: bool = False,
    hints: Mapping[str, str] | None = None,
) -> TorchComm:
    """Makes a communicator over the ranks of the job. Collective: every rank calls it.

    Returns when all ranks have joined; an error of one rank is raised on all.

    Args:
        backend: `"gloo"`, the host engine, `"nccl"`, the engine for NVIDIA GPUs, or a name that
            `register_backend` or another package's entry point made known.
        device: where the tensors live; `cpu` for gloo, `cuda` for nccl. Without an index: the
            current device when one was chosen, else LOCAL_RANK's, else by rank.
        abort_process_on_timeout_or_error: whether a time-out or an error that a group cannot get
            over ends the process, after its reason and the flight recorder were written. Without
            one: TORCHCOMM_ABORT_ON_ERROR, else true. For nccl alone: the host engine never ends
            the process.
        timeout: limit for joining and default limit of every operation. Without one: the group's
            own when torch.distributed makes the group, else TORCHCOMM_TIMEOUT_SECONDS, else 600 s.
        store: where the ranks meet. Without one: a store at MASTER_ADDR and MASTER_PORT, opened
            once per process and shared by all communicators.
        name: the same on every rank. Without one: numbered by order of creation.
        enable_reconfigure: makes a communicator without members, and asks no store. Its
            `reconfigure` gives it members, and later other ones: after a rank is lost, when some
            leave or come. Rank and size are the launcher's until then. See docs/reconfigure.md.
        hints: settings for the engine, the same on every rank.

    Rank and size come from TORCHCOMM_RANK and TORCHCOMM_SIZE, else from the launcher (torchrun,
    MPI, PMI); TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD names the launcher.

    Raises:
        ValueError: an argument or an environment variable is missing or wrong; both are named.
        TypeError: an argument has the wrong type.
        NotImplementedError: a known backend or option that this version does not serve.
        RuntimeError: the ranks could not join; the message names those that are missing.
    """
    # The module's own name: looking for it in the package would cost a call of Python's importer.
    from torchcomms._factory import create

    return create(
        backend,
        device,
        timeout=timeout,
        store=store,
        name=name,
        enable_reconfigure=enable_reconfigure,
        hints=hints,
        abort_process=abort_process_on_timeout_or_error,
    )


def get_mem_allocator(backend: str) -> Any:
    """Memory for tensors that the backend of that name reads where it lies.

    For nccl it is for pools, `torch.cuda.MemPool(get_mem_allocator("nccl"))`, whose memory NCCL can
    register with every transport. For gloo it has a method `empty` and is shared memory: in large
    collectives the other ranks of the machine combine and copy right from the tensor. Every
    operation takes tensors from it and ordinary ones, and each rank decides for itself. It is
    anonymous, reserved when a tensor is made and given back with it. A forked child shares
    inherited tensors with its parent.

    Raises:
        TypeError, NotImplementedError, ValueError: as `new_comm` for `backend`.
    """
    name = _backends.resolve(backend)
    if name == "nccl":
        from torchcomms import _cuda

        return _cuda.pool_allocator()
    return _comms._mem_allocator(name)


def register_backend(name: str, cls: type[TorchCommBackend]) -> None:
    """Makes a backend written in Python known: `new_comm(name, ...)` then makes instances of `cls`.

    With the switch on, `init_process_group(name)` does, too. A later call under the same name
    replaces the class for communicators made from then on. Another package can name its class in an
    entry point of group `torchcomms.backends` instead.

    Raises:
        TypeError: `cls` is no subclass of TorchCommBackend.
        ValueError: the name is empty, has characters other than letters, digits, `_`, `-` and `.`,
            or is one that this package serves itself.
    """
    from torchcomms import _python_backend

    _python_backend.register(name, cls)


def engine_info() -> dict[str, Any]:
    """What is installed, what can run here and which engine serves which group; see `_info`."""
    from torchcomms import _info

    return _info.collect()


# Imported when they are first asked for: what a program does not use costs it no time.
_MODULES = ("device_mesh", "distwrap", "functional", "hooks", "objcol")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"torchcomms.{name}")
    raise AttributeError(f"module 'torchcomms' has no attribute {name!r}")


_fit.check()

# Everything torch looks for is bound; importing torch may now come back into this module.
try:
    import torch as _torch

    from torchcomms import _comms, _hook_args, _options
    from torchcomms._comms import (
        AllGatherHandle,
        BatchSendRecv,
        MemAllocator,
        ReconfigureOptions,
        RedOpType,
        ReduceOp,
        RemovableHandle,
        TorchComm,
        TorchCommWinAccessType,
        TorchCommWindow,
        TorchCommWindowAttr,
        TorchWork,
        WorkStatus,
    )
except ImportError as _error:
    _fit.fail(f"its extension cannot be loaded ({_error})", _error)

if _comms._built_for_torch in ("2.11", "2.12"):
    from torchcomms import _older_torch

    _older_torch.prepare()

from torchcomms._build_info import VERSION as __version__  # noqa: E402
from torchcomms._hook_args import *  # noqa: E402, F403
from torchcomms._options import *  # noqa: E402, F403
from torchcomms._python_backend import TorchCommBackend  # noqa: E402

__all__ = [
    "AllGatherHandle",
    "BatchSendRecv",
    "MemAllocator",
    "ReconfigureOptions",
    "RedOpType",
    "ReduceOp",
    "RemovableHandle",
    "TorchComm",
    "TorchCommWinAccessType",
    "TorchCommWindow",
    "TorchCommWindowAttr",
    "TorchCommBackend",
    "TorchWork",
    "WorkStatus",
    "__version__",
    "built_backends",
    "engine_info",
    "get_mem_allocator",
    "is_backend_built",
    "new_comm",
    "register_backend",
    *_hook_args.__all__,
    *_options.__all__,
]
