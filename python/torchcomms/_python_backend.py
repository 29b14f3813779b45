"""Backends written in Python: the base class, the names they have, and the calls of them.

Must not know the engine: the extension calls `issue` and `split` where it would call the engine.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from torchcomms import _backends, _options

if TYPE_CHECKING:
    import torch

    from torchcomms._comms import TorchComm
    from torchcomms._hook_args import PreHookArgs


class BackendWork(Protocol):
    """What an operation of a backend returns unless it is over: torch's works and futures fit."""

    def wait(self) -> object:
        """Returns when the operation is over; raises its failure."""

    def is_completed(self) -> bool:
        """Looks, without waiting. A future's `done` is taken too."""


class TorchCommBackend:
    """A backend for `torchcomms.register_backend`; subclass it and override what it can do.

    `new_comm` makes an instance without arguments and calls `init`. Operations take the arguments
    of `TorchComm`'s in order, by position: tensors and the rest, `async_op`, then options with the
    `timeout` that holds and the call's `hints`. A synchronous one returns when it is over; an
    asynchronous one returns a work (`BackendWork`), or None when it is over. What is not overridden
    raises NotImplementedError. Hooks and states are the communicator's and not the backend's.
    """

    devices: tuple[str, ...] = ("cpu",)
    """Types of the devices whose tensors it takes."""

    version: str = ""
    """What `TorchComm.get_backend_version` says; empty: the version of the package it comes in."""

    rank = 0
    size = 1

    def init(self, device: torch.device, name: str, options: _options.CommOptions) -> None:
        """Joins the ranks: collective. `options` has rank, size, store, time-out and hints."""
        self.rank = options.rank
        self.size = options.size

    def get_rank(self) -> int:
        """Rank of this process."""
        return self.rank

    def get_size(self) -> int:
        """Number of ranks."""
        return self.size

    def finalize(self) -> None:
        """Ends the communicator; called once."""

    def abort(self) -> None:
        """Gives the communicator up, without waiting; called once at most."""

    def split(
        self, ranks: list[int], name: str, options: _options.SplitOptions
    ) -> TorchCommBackend | None:
        """The backend of `ranks`, in that order; None on a rank outside. Collective.

        `options.hints` are all that hold for it, those of this communicator among them.
        """
        raise self._cannot("split")

    def _cannot(self, operation: str) -> NotImplementedError:
        return NotImplementedError(f"backend {type(self).__name__} does not support {operation}")


OPERATIONS = (
    "send",
    "recv",
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_v",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_v",
    "reduce_scatter_single",
    "all_to_all_single",
    "all_to_all_v_single",
    "all_to_all",
    "barrier",
    "scatter",
    "gather",
    "gather_single",
)

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_lock = threading.Lock()
_classes: dict[str, type[TorchCommBackend]] = {}


def register(name: str, cls: type[TorchCommBackend]) -> None:
    """See `torchcomms.register_backend`."""
    from torchcomms import _comms

    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"the backend's name must be a str with a letter in it, got {name!r}")
    if not (isinstance(cls, type) and issubclass(cls, TorchCommBackend)):
        raise TypeError(f"cls must be a subclass of TorchCommBackend, got {cls!r}")
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"the backend's name must be made of letters, digits, '_', '-' and '.', got {name!r}: "
            "torch reads ':' and ',' as parts of 'cpu:name,cuda:name'"
        )
    if not (isinstance(cls.devices, tuple) and all(isinstance(kind, str) for kind in cls.devices)):
        raise TypeError(f"{cls.__name__}.devices must be a tuple of str, got {cls.devices!r}")
    key = name.lower()
    if _backends.is_own(key) or key in _backends.unsupported():
        raise ValueError(f"the backend name {name!r} is taken: choose another one")
    with _lock:
        _classes[key] = cls
    _comms._register_backend_name(key)
    _route_in_torch(key, cls)


def find(name: str) -> type[TorchCommBackend] | None:
    """The class under `name`: registered, or loaded now from an entry point of another package.

    Raises:
        TypeError: what the entry point names is no subclass of TorchCommBackend.
    """
    cls = registered(name)
    if cls is None and isinstance(name, str):
        plugin = _backends.plugin(name)
        if plugin is not None:
            register(plugin.name, plugin.load())
            cls = registered(name)
    return cls


def registered(name: str) -> type[TorchCommBackend] | None:
    """The class registered under `name`, if there is one."""
    with _lock:
        return _classes.get(name.lower()) if isinstance(name, str) else None


def names() -> list[str]:
    """Names that were registered, sorted."""
    with _lock:
        return sorted(_classes)


def _route_in_torch(name: str, cls: type[TorchCommBackend]) -> None:
    """Lets `init_process_group(name)` through to us.

    torch refuses names that its own registry does not have before it asks for the engine that
    serves them. The creator is never called while the switch is on.
    """
    import torch.distributed as dist

    if name in dist.Backend.backend_list:
        return

    def create(*_: object) -> Any:
        raise RuntimeError(
            f"backend {name!r} is one of torchcomms: set torch.distributed.config.use_torchcomms "
            "= True, or TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 before torch is imported"
        )

    dist.Backend.register_backend(name, create, extended_api=True, devices=list(cls.devices))


def create(
    name: str,
    cls: type[TorchCommBackend],
    device: torch.device,
    options: _options.CommOptions,
) -> TorchComm:
    """Joins the ranks and returns the communicator over the backend."""
    from torchcomms import _comms

    backend = cls()
    backend.init(device, options.name, options)
    timeout = options.timeout
    assert timeout is not None, "the factory decides it"
    return _comms._foreign_comm(backend, name, device, options.name, timeout, options.hints)


_OPTIONS = {
    name: getattr(_options, "".join(part.capitalize() for part in name.split("_")) + "Options")
    for name in OPERATIONS
}


def issue(
    backend: TorchCommBackend, args: PreHookArgs, timeout: timedelta, hints: Mapping[str, str]
) -> object:
    """Calls the method of an operation; called by the extension. Returns a work, or None."""
    name = args.op_name.value
    method = getattr(backend, name, None)
    if method is None:
        raise backend._cannot(name)
    values = [getattr(args, field.name) for field in fields(args)]
    work = method(*values, _OPTIONS[name](timeout=timeout, hints=dict(hints)))
    if work is None or hasattr(work, "is_completed"):
        return work
    if hasattr(work, "wait") and hasattr(work, "done"):
        return _FutureWork(work)
    raise TypeError(
        f"{type(backend).__name__}.{name} must return None, a work or a future, got {work!r}"
    )


def position(backend: TorchCommBackend) -> tuple[int, int]:
    """Rank and size, as the backend says them; called by the extension."""
    rank, size = backend.get_rank(), backend.get_size()
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size < 2**31):
        raise ValueError(
            f"{type(backend).__name__}: get_rank() and get_size() must be a rank and the number of "
            f"ranks, got {rank!r} and {size!r}"
        )
    return rank, size


def version(backend: TorchCommBackend, name: str) -> str:
    """The backend's own version, else its package's; called by the extension.

    A package says it itself (`__version__`), or it is known what it was installed as: under the
    entry point `name`, or under the package's own name. "unknown" where there is none of these.
    """
    own = backend.version
    if not isinstance(own, str):
        raise TypeError(f"{type(backend).__name__}.version must be a str, got {own!r}")
    package = type(backend).__module__.partition(".")[0]
    stated = own or getattr(sys.modules.get(package), "__version__", None)
    if isinstance(stated, str):
        return stated
    plugin = _backends.plugin(name)
    if plugin is not None and plugin.dist is not None:
        return plugin.dist.version
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def split(
    backend: TorchCommBackend,
    ranks: list[int],
    name: str,
    timeout: timedelta,
    hints: Mapping[str, str],
) -> object:
    """Calls `split`; called by the extension. Returns a backend, or None."""
    options = _options.SplitOptions(timeout=timeout, hints=dict(hints))
    part = backend.split(ranks, name, options)
    if part is not None and not isinstance(part, TorchCommBackend):
        raise TypeError(
            f"{type(backend).__name__}.split must return a TorchCommBackend or None, got {part!r}"
        )
    return part


class _FutureWork:
    """A future with the names of a work."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> object:
        return self._future.wait()

    def is_completed(self) -> bool:
        return bool(self._future.done())
