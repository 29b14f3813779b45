"""What the programs of this folder have in common: who this rank is, how it joins, how it makes and
reads tensors, and slow kernels. See programs.py."""

from __future__ import annotations

import ctypes
import datetime
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
OURS = os.environ.get("FC_SIDE", "ours") == "ours"
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@functools.cache
def meeting() -> dist.TCPStore:
    """One for all groups of the process: a server that is opened again would be met too late."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, SIZE, RANK == 0)


JOINED = itertools.count()


def join(backend: str = "nccl", seconds: float = 60) -> None:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"group {next(JOINED)}", meeting()),
        rank=RANK,
        world_size=SIZE,
        device_id=device() if backend == "nccl" else None,
        timeout=datetime.timedelta(seconds=seconds),
    )


def made(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).cuda()


def empty(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=device())


def seen(tensor: torch.Tensor) -> Any:
    host = tensor.cpu()
    if host.dtype in (torch.complex64, torch.complex128):
        host = torch.view_as_real(host)
    return host.to(torch.float64).tolist() if host.is_floating_point() else host.tolist()


class Host:
    """Functions that the simulated device runs on a stream, as slow kernels."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._kept: list[Any] = []

    def on(self, stream: torch.cuda.Stream, function: Callable[[], None]) -> None:
        call = self._type(lambda _context: function())
        self._kept.append(call)
        handle = ctypes.c_void_p(stream.cuda_stream)
        result = self._driver.cuLaunchHostFunc(handle, call, None)
        assert result == 0, result

    def fill(self, stream: torch.cuda.Stream, tensor: torch.Tensor, value: int) -> None:
        """Sets every byte of `tensor` on `stream`."""
        address, size = tensor.data_ptr(), tensor.nbytes
        self.on(stream, lambda: ctypes.memset(address, value, size) and None)


def waited(work: Any) -> None:
    if work is not None:
        work.wait()
