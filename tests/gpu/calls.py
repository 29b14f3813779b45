"""The simulated NCCL and driver through ctypes, without torch."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

OK, CUDA, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS = range(8)
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, E4M3, E5M2 = range(
    12
)
SUM, PROD, MAX, MIN, AVG = range(5)

NCCL = ctypes.CDLL("libnccl.so.2")
DRIVER = ctypes.CDLL("libcuda.so.1")


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.30: a size, a mark, a version, and fields of which few matter here."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("numbers", ctypes.c_int * 3),
        ("net_name", ctypes.c_char_p),
        ("share", ctypes.c_int * 2),
        ("comm_name", ctypes.c_char_p),
        ("rest", ctypes.c_int * 10),
    ]

    def __init__(self, blocking: int = -(2**31)) -> None:
        undefined = -(2**31)
        super().__init__(96, 0xCAFEBEEF, 23007, blocking)
        self.numbers[:] = [undefined] * 3
        self.share[:] = [undefined] * 2
        self.rest[:] = [undefined] * 10


def driver(name: str, *arguments: Any) -> None:
    """A call of the driver that must succeed."""
    status = getattr(DRIVER, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: status {status}")


def call(name: str, *arguments: Any) -> int:
    """A call of NCCL; gives its code."""
    return int(getattr(NCCL, name)(*arguments))


def last_error() -> str:
    NCCL.ncclGetLastError.restype = ctypes.c_char_p
    return str(NCCL.ncclGetLastError(None).decode())


def check(name: str, *arguments: Any) -> None:
    """A call of NCCL that must succeed."""
    code = call(name, *arguments)
    if code != OK:
        raise RuntimeError(f"{name}: code {code}: {last_error()}")


def same(got: object, expected: object, what: str) -> None:
    if got != expected:
        raise AssertionError(f"rank {RANK}: {what}: got {got}, expected {expected}")


def start() -> None:
    """Makes this rank's device current."""
    driver("cuInit", 0)
    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), RANK)
    driver("cuCtxSetCurrent", context)


def stream() -> ctypes.c_void_p:
    result = ctypes.c_void_p()
    driver("cuStreamCreateWithPriority", ctypes.byref(result), 1, 0)
    return result


def synchronize(on: ctypes.c_void_p) -> None:
    driver("cuStreamSynchronize", on)


class Buffer:
    """Device memory with a ctypes array on it, since device memory is host memory here."""

    def __init__(self, kind: Any, values: Sequence[float], windowed: bool = False) -> None:
        pointer = ctypes.c_void_p()
        length = ctypes.c_size_t(max(1, ctypes.sizeof(kind) * len(values)))
        if windowed:
            check("ncclMemAlloc", ctypes.byref(pointer), length)
        else:
            driver("cuMemAlloc_v2", ctypes.byref(pointer), length)
        self.at = pointer
        self.values = (kind * len(values)).from_address(pointer.value or 0)
        self.values[:] = values

    def __eq__(self, other: object) -> bool:
        return list(self.values) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self.values))


def floats(*values: float) -> Buffer:
    return Buffer(ctypes.c_float, values)


def share(name: str, content: bytes | None = None) -> bytes:
    """Bytes from the rank that has some to all, through the folder of the test."""
    path = Path(os.environ["SIMGPU_TEST_FOLDER"]) / name
    if content is not None:
        fresh = path.with_name(f"{name}.{RANK}")
        fresh.write_bytes(content)
        fresh.rename(path)
    deadline = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.002)
    return path.read_bytes()


def unique_id(name: str) -> UniqueId:
    """One id for all ranks."""
    made = UniqueId()
    if RANK == 0:
        check("ncclGetUniqueId", ctypes.byref(made))
    content = share(name, bytes(made) if RANK == 0 else None)
    return UniqueId.from_buffer_copy(content)


def join(name: str, config: Config | None = None) -> ctypes.c_void_p:
    """A communicator of all ranks."""
    comm = ctypes.c_void_p()
    settings = ctypes.byref(config) if config else None
    code = call("ncclCommInitRankConfig", ctypes.byref(comm), SIZE, unique_id(name), RANK, settings)
    if code not in (OK, IN_PROGRESS):
        raise RuntimeError(f"ncclCommInitRankConfig: code {code}: {last_error()}")
    return comm


def state(comm: ctypes.c_void_p) -> int:
    """What polling tells."""
    error = ctypes.c_int()
    check("ncclCommGetAsyncError", comm, ctypes.byref(error))
    return error.value


def settle(comm: ctypes.c_void_p, seconds: float = 30) -> int:
    """Polls until a communicator is no more in progress."""
    deadline = time.monotonic() + seconds
    while (code := state(comm)) == IN_PROGRESS:
        if time.monotonic() > deadline:
            raise TimeoutError("still in progress")
        time.sleep(0.001)
    return code


def await_state(comm: ctypes.c_void_p, wanted: int, seconds: float = 30) -> None:
    """Polls until a communicator tells a code."""
    deadline = time.monotonic() + seconds
    while (code := state(comm)) != wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"state {code}, expected {wanted}")
        time.sleep(0.001)


def place(comm: ctypes.c_void_p) -> tuple[int, int]:
    """Rank and size."""
    rank, size = ctypes.c_int(), ctypes.c_int()
    check("ncclCommUserRank", comm, ctypes.byref(rank))
    check("ncclCommCount", comm, ctypes.byref(size))
    return rank.value, size.value


def all_reduce(
    comm: ctypes.c_void_p,
    buffer: Buffer,
    on: ctypes.c_void_p,
    dtype: int = FLOAT32,
    op: int = SUM,
    count: int | None = None,
) -> int:
    """In place; gives the code."""
    number = ctypes.c_size_t(len(buffer.values) if count is None else count)
    return call("ncclAllReduce", buffer.at, buffer.at, number, dtype, op, comm, on)


def sum_is_right(comm: ctypes.c_void_p, on: ctypes.c_void_p) -> None:
    """A communicator works."""
    _, size = place(comm)
    buffer = floats(1, 2)
    code = all_reduce(comm, buffer, on)
    if code == IN_PROGRESS:
        same(settle(comm), OK, "state")
    elif code != OK:
        raise RuntimeError(f"ncclAllReduce: code {code}: {last_error()}")
    synchronize(on)
    same(list(buffer.values), [size, 2.0 * size], "sum")
