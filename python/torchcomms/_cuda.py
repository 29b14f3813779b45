"""What the nccl engine is told about this process: where NCCL lies, which device, how to fail.

Must not know how ranks join or how data moves, and imports torch only inside its functions.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ABORT_HINT = "abort_process_on_timeout_or_error"
ABORT_VARIABLE = "TORCHCOMM_ABORT_ON_ERROR"

_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


def wheel() -> str | None:
    """Where the wheel `nvidia-nccl` puts the library, when it is installed."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in (found and found.submodule_search_locations) or ():
        library = Path(folder) / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return None


def locate() -> None:
    """Tells the engine where the wheel's NCCL is; it comes after a copy that is mapped already."""
    from torchcomms import _comms

    _comms._locate_nccl(wheel())


def abort_process(asked: bool | None) -> str:
    """Whether a failure ends the process: the caller's word, else the variable's, else yes.

    Raises:
        ValueError: the variable has another value than 0, 1, true or false.
    """
    if asked is None:
        text = os.environ.get(ABORT_VARIABLE, "1").lower()
        if text not in _TRUTHS:
            raise ValueError(f"{ABORT_VARIABLE}={text!r}: expected 0, 1, true or false")
        asked = _TRUTHS[text]
    return "true" if asked else "false"


@functools.cache
def pool_allocator() -> Any:
    """What `torch.cuda.MemPool` takes its memory from: NCCL's own allocation.

    Raises:
        NotImplementedError: torch was built without CUDA.
    """
    import torch
    from torch.cuda.memory import CUDAPluggableAllocator

    cuda: Any = torch.backends.cuda
    if not cuda.is_built():
        raise NotImplementedError("get_mem_allocator('nccl') needs a torch that is built for CUDA")
    from torchcomms import _comms

    locate()
    library = Path(_comms.__file__).parent / "libferrocomm.so"
    pluggable: Any = CUDAPluggableAllocator(str(library), "fc_nccl_pool_alloc", "fc_nccl_pool_free")
    return pluggable.allocator()


@functools.cache
def _pool() -> Any:
    import torch

    return torch.cuda.MemPool(pool_allocator())


def empty_in_pool(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor in the memory that `pool_allocator` gives."""
    import torch

    with torch.cuda.use_mem_pool(_pool(), device):
        return torch.empty(size, dtype=dtype, device=device)


def with_index(device: torch.device, rank: int) -> torch.device:
    """`device` with an index.

    Without one: the current device, when it is not the first one, which somebody must have chosen;
    else LOCAL_RANK's, else the rank's, as far as there are devices. Where there is none, the index
    is 0 and the engine says what is missing.
    """
    import torch

    if str(device) != device.type:
        return device
    count = torch.cuda.device_count()
    if count <= 1:
        return torch.device(device.type, 0)
    current = torch.cuda.current_device()
    if current == 0:
        local = os.environ.get("LOCAL_RANK", "")
        current = (int(local) if local.isdigit() else rank) % count
    return torch.device(device.type, current)
