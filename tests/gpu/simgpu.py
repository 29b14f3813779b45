"""What tests ask of the simulator itself: operations that hold a stream up."""

from __future__ import annotations

import ctypes
import itertools
import os

import torch

_numbers = itertools.count(1)


def is_simulated() -> bool:
    """Whether this process runs on the simulated GPU."""
    return os.environ.get("SIMGPU") == "1"


def _call(name: str, *arguments: object) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: status {status}")


def _handle(stream: torch.cuda.Stream | None) -> ctypes.c_void_p:
    return ctypes.c_void_p((stream or torch.cuda.current_stream()).cuda_stream)


def sleep(milliseconds: int, stream: torch.cuda.Stream | None = None) -> None:
    """Occupies a stream for some time: a slow kernel."""
    _call("simgpuStreamSleep", _handle(stream), ctypes.c_uint(milliseconds))


class Gate:
    """Holds a stream up until it is opened: a kernel that spins."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.number = ctypes.c_uint64(next(_numbers))
        _call("simgpuStreamGate", _handle(stream), self.number)

    def open(self) -> None:
        """Lets the stream go on."""
        _call("simgpuGateOpen", self.number)


def write_word(tensor: torch.Tensor, value: int, stream: torch.cuda.Stream | None = None) -> None:
    """Writes 32 bits to a tensor's beginning in stream order."""
    address = ctypes.c_uint64(tensor.data_ptr())
    arguments = (_handle(stream), address, ctypes.c_uint32(value), ctypes.c_uint(0))
    _call("cuStreamWriteValue32_v2", *arguments)
