"""Memory pools of torch, registered with a communicator segment by segment.

A pool is asked for its segments through torch's public snapshot, so that nothing here needs a
library of CUDA's. Must not know what registering does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchcomms._comms import TorchComm

if TYPE_CHECKING:
    import torch


def register(comm: TorchComm, pool: Any, symm: bool = False) -> None:
    """Registers the segments that `pool` has now on the communicator's device, and keeps the pool.

    Called again, it registers those that the pool has got meanwhile.

    Raises:
        NotImplementedError: `symm` is asked for, or the communicator is not one of CUDA tensors.
        ValueError: the pool has no memory on the device.
        RuntimeError: the engine cannot register it.
    """
    if symm:
        raise NotImplementedError(
            "register_mem_pool(symm=True) is not supported: make a window of each tensor instead"
        )
    device = _cuda_device(comm, "register_mem_pool")
    segments = [
        (segment["address"], segment["total_size"])
        for segment in pool.snapshot()
        if segment["device"] == (device.index or 0)
    ]
    if not segments:
        raise ValueError(
            f"the pool has no memory on {device} yet: allocate in it, then register it"
        )
    for address, size in segments:
        comm._register_memory(address, size, pool)


def deregister(comm: TorchComm, pool: Any) -> None:
    """Takes that back.

    Raises:
        NotImplementedError: the communicator is not one of CUDA tensors.
        ValueError: the pool is not registered with this communicator.
    """
    _cuda_device(comm, "deregister_mem_pool")
    if comm._deregister_memory_of(pool) == 0:
        raise ValueError("the pool is not registered with this communicator")


def _cuda_device(comm: TorchComm, operation: str) -> torch.device:
    device = comm.get_device()
    if device.type != "cuda":
        raise NotImplementedError(
            f"not supported: the {comm.get_backend()} engine has no memory pools [communicator "
            f"{comm.get_name()}, rank {comm.get_rank()}, operation {operation}]; nccl does, for "
            "CUDA tensors"
        )
    return device
