"""Does the compiled extension fit the torch that is running? Answered before it is loaded.

The table of virtual functions of torch's `Backend` changes between minor releases, so an extension
built for another one may load and then call the wrong function. Must not import torch.

Its state outlives a failed import of the package: torch imports us twice when the first attempt
fails, and the user is to be told once. Must not know the engine.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import NoReturn

REBUILD = "pip install --no-build-isolation ."

_warned = False


def built_for() -> str | None:
    """`MAJOR.MINOR` of the torch the extension was built against; None in a tree never built."""
    try:
        from torchcomms import _build_info
    except ImportError:
        return None
    return _build_info.TORCH


def running_torch() -> str | None:
    """Full version of the torch that is loaded or would be; None when there is no telling."""
    loaded = sys.modules.get("torch.version")
    if loaded is not None:
        version = getattr(loaded, "__version__", None)
        return None if version is None else str(version)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def minor(version: str) -> str:
    """`2.15` of `2.15.0+cpu`."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check() -> None:
    """Raises ImportError, after one warning, when the extension was built for another torch."""
    built, running = built_for(), running_torch()
    if built is not None and running is not None and minor(running) != built:
        fail(f"its extension was built for torch {built}, but torch {running} is running")


def fail(reason: str, cause: ImportError | None = None) -> NoReturn:
    """Raises ImportError; says once on stderr why torchcomms cannot be used and what mends it.

    ImportError only: torch takes it for "no torchcomms" and goes on, while any other exception
    would break the import of torch.distributed itself.
    """
    global _warned
    message = (
        f"torchcomms cannot be used: {reason}; rebuild it against the running torch with "
        f"`{REBUILD}` in the source tree of ferrocomm"
    )
    if not _warned:
        _warned = True
        sys.stderr.write(f"warning: {message}. torch.distributed goes on without it.\n")
    raise ImportError(message) from cause
