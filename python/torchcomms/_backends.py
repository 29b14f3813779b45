"""Which backend names this package serves, and the words for those it does not.

Knows names alone: no torch, no extension, no engine, so that it can be imported before all three.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata

ENTRY_POINTS = "torchcomms.backends"
"""Group of entry points; this package has its own names there, others a subclass each."""

_BUILT = ("gloo", "nccl")

_UNSUPPORTED = {
    "ncclx": (
        "backend 'ncclx' is not supported through this package: use 'nccl', "
        "NVIDIA's own library, for CUDA tensors"
    ),
}

# Devices a backend accepts.
_DEVICES = {"gloo": ("cpu",), "nccl": ("cuda",)}


def built() -> list[str]:
    """Names that `new_comm` accepts, sorted."""
    return sorted({*_BUILT, *_plugins()})


def is_own(name: str) -> bool:
    """Whether `name` is served by the engine; case does not matter."""
    return name.lower() in _BUILT


def is_built(name: str) -> bool:
    """Whether `new_comm` accepts `name`; case does not matter."""
    return is_own(name) or plugin(name) is not None


def plugin(name: str) -> metadata.EntryPoint | None:
    """Where another package has a backend of that name."""
    return _plugins().get(name.lower())


@cache
def _plugins() -> dict[str, metadata.EntryPoint]:
    found = {point.name.lower(): point for point in metadata.entry_points(group=ENTRY_POINTS)}
    return {name: p for name, p in found.items() if name not in (*_BUILT, *_UNSUPPORTED)}


def unsupported() -> dict[str, str]:
    """Known names that cannot be used here, each with the reason."""
    return dict(_UNSUPPORTED)


def resolve(name: str) -> str:
    """The backend's canonical name.

    Raises:
        TypeError: `name` is not a string.
        NotImplementedError: a known backend that this version does not serve.
        ValueError: an unknown name; the message lists those that are built.
    """
    if not isinstance(name, str):
        raise TypeError(f"backend must be a str, got {type(name).__name__} {name!r}")
    key = name.lower()
    if key in _BUILT:
        return key
    reason = _UNSUPPORTED.get(key)
    if reason is not None:
        raise NotImplementedError(reason)
    raise ValueError(f"unknown backend {name!r}: built backends are {', '.join(built())}")


def check_device(name: str, device_type: str) -> None:
    """Raises ValueError when backend `name` cannot serve tensors on `device_type`."""
    accepted = _DEVICES[name]
    if device_type not in accepted:
        raise ValueError(
            f"backend {name!r} serves {', '.join(accepted)} tensors, got device "
            f"{device_type!r}: pass a device of type {' or '.join(accepted)}"
        )
