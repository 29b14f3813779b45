"""What a rank does in the checks on a GPU: `python ranks.py CHECK`.

Prints `DETAIL words` and ends with 0, with 77 when the check cannot be made here, else otherwise.
Launches no kernel but the slow one, so that the simulated GPU can run everything as well; values
are made on the host and copied.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simgpu
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SKIPPED = 77

CHECKS: dict[str, Callable[[], str]] = {}


class Skipped(Exception):
    """The check cannot be made here; the text says why."""


def check(function: Callable[[], str]) -> Callable[[], str]:
    CHECKS[function.__name__] = function
    return function


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def made(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values).to(dtype).cuda()


def empty(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=device())


def bits(tensor: torch.Tensor) -> list[int]:
    """A tensor's bytes: comparable whatever the dtype is."""
    return tensor.cpu().contiguous().view(torch.uint8).tolist()


def join() -> None:
    """The process group, which has to be ours."""
    import torchcomms

    where = os.environ.get("FC_PACKAGE", "")
    assert str(torchcomms.__file__).startswith(where), f"{torchcomms.__file__} was imported"
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    dist.init_process_group("nccl", device_id=device(), timeout=datetime.timedelta(seconds=30))
    group = torchcomms.engine_info()["groups"][0]
    assert group["served_by"] == "ferrocomm", group


# ---- a slow kernel


@functools.cache
def cycles_per_millisecond() -> float:
    """How fast torch's spinning kernel counts."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # An idle card runs at a lower clock.
    torch.cuda._sleep(400_000_000)
    start.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    end.synchronize()
    return float(100_000_000 / start.elapsed_time(end))


def occupy(milliseconds: int) -> None:
    """A slow kernel on the current stream. It ends by itself, whatever happens."""
    if simgpu.is_simulated():
        simgpu.sleep(milliseconds)
    else:
        torch.cuda._sleep(int(milliseconds * cycles_per_millisecond()))


# ---- the libraries


def facts() -> None:
    """What this machine has, for the table's head."""
    cuda: Any = torch.backends.cuda
    found: dict[str, Any] = {"torch": torch.__version__, "missing": None}
    if not cuda.is_built():
        found["missing"] = f"torch {torch.__version__} is built without CUDA"
    elif not torch.cuda.is_available():
        found["missing"] = "torch finds no usable NVIDIA GPU"
    else:
        found["card"] = torch.cuda.get_device_name(0)
        found["devices"] = torch.cuda.device_count()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        found["driver"] = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        module = Path("/proc/driver/nvidia/version")
        if module.exists() and not simgpu.is_simulated():
            number = re.search(r"\d+\.\d+(?:\.\d+)?", module.read_text())
            found["driver"] += f" ({number[0]})" if number else ""
    print("FACTS " + json.dumps(found), flush=True)


def needed() -> tuple[dict[str, int], set[str]]:
    """The functions that the engine asks for: NCCL's with the version that brought them, CUDA's."""
    code = ""
    for path in sorted((ROOT / "rust/nccl/src").rglob("*.rs")):
        code += re.sub(r"//.*", "", path.read_text())
    versions = (ROOT / "rust/nccl-sys/src/version.rs").read_text()
    first = {
        name: int(major) * 10_000 + int(minor) * 100 + int(patch)
        for name, major, minor, patch in re.findall(
            r'"(nccl\w+)", Version::new\((\d+), (\d+), (\d+)\)', versions
        )
    }
    bindings = (ROOT / "rust/nccl-sys/src/bindings.rs").read_text()
    functions = set(re.findall(r"^    pub (nccl\w+):\s*Result<", bindings, re.M))
    nccl = {name: first.get(name, 0) for name in functions if re.search(rf"\b{name}\b", code)}
    cuda = set(re.findall(r"\bcu[A-Z]\w+", code))
    # An error names the function as CUDA's manual does; what is called has a version.
    return nccl, {name for name in cuda if not any(other.startswith(name + "_v") for other in cuda)}


def lacking(library: ctypes.CDLL, names: set[str]) -> list[str]:
    return sorted(name for name in names if not hasattr(library, name))


@check
def symbols() -> str:
    # The one that the engine takes: torch's, which is mapped, unless another is named.
    nccl = ctypes.CDLL(os.environ.get("FERROCOMM_NCCL_LIB") or "libnccl.so.2")
    driver = ctypes.CDLL("libcuda.so.1")
    code = ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(code)) == 0
    of_nccl, of_cuda = needed()
    assert of_nccl, "no function of NCCL is used"
    assert of_cuda, "no function of CUDA is used"
    current = {name for name, first in of_nccl.items() if first <= code.value}
    missing = lacking(nccl, current) + lacking(driver, of_cuda)
    newer = sorted(of_nccl.keys() - current)
    # Something of a later version in an earlier library: then the table of versions is wrong.
    early = sorted(set(newer) - set(lacking(nccl, set(newer))))
    said = f"{len(current)} functions of NCCL {code.value}, {len(of_cuda)} of CUDA"
    said += f"; too new for it: {', '.join(newer)}" if newer else ""
    assert not missing, f"{said}; missing: {', '.join(missing)}"
    assert not early, f"{said}; there all the same: {', '.join(early)}"
    return said


# ---- world size 1

REDUCED = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
MOVED = [
    *REDUCED,
    torch.bool,
    torch.int16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
OPS = ["SUM", "PRODUCT", "MIN", "MAX"]
COMPLEX = [torch.complex64, torch.complex128]
# NCCL reduces them from this capability of a card on.
FLOAT8, FLOAT8_FROM = [torch.float8_e4m3fn, torch.float8_e5m2], (9, 0)
AVERAGED = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def waited(work: Any) -> None:
    if work is not None:
        work.wait()


def moves(dtype: torch.dtype, async_op: bool) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What each operation without arithmetic leaves of some values, and those values."""
    given = made([1, 0, 3], dtype)
    whole: dict[str, Callable[[torch.Tensor], Any]] = {
        "broadcast": lambda out: dist.broadcast(out, 0, async_op=async_op),
        "all_gather": lambda out: dist.all_gather([out], given, async_op=async_op),
        "all_gather_into_tensor": lambda out: dist.all_gather_into_tensor(
            out, given, async_op=async_op
        ),
        "all_to_all_single": lambda out: dist.all_to_all_single(out, given, async_op=async_op),
        "all_to_all": lambda out: dist.all_to_all([out], [given], async_op=async_op),
        "gather": lambda out: dist.gather(given, [out], 0, async_op=async_op),
        "scatter": lambda out: dist.scatter(out, [given], 0, async_op=async_op),
    }
    found = {}
    for name, operation in whole.items():
        out = made([0, 0, 0], dtype)
        if name == "broadcast":
            out.copy_(given)
        waited(operation(out))
        found[name] = (out, given)
    return found


def reductions(
    dtype: torch.dtype, op: Any, async_op: bool
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The same of each operation with arithmetic: of one rank, it changes nothing."""
    given = made([1, 2, 3], dtype)
    in_place: dict[str, Callable[[torch.Tensor], Any]] = {
        "all_reduce": lambda out: dist.all_reduce(out, op, async_op=async_op),
        "reduce": lambda out: dist.reduce(out, 0, op, async_op=async_op),
    }
    beside: dict[str, Callable[[torch.Tensor], Any]] = {
        "reduce_scatter": lambda out: dist.reduce_scatter(out, [given], op, async_op=async_op),
        "reduce_scatter_tensor": lambda out: dist.reduce_scatter_tensor(
            out, given, op, async_op=async_op
        ),
    }
    found = {}
    for name, operation in {**in_place, **beside}.items():
        out = made([1, 2, 3] if name in in_place else [0, 0, 0], dtype)
        waited(operation(out))
        found[name] = (out, given)
    return found


@check
def one_rank() -> str:
    join()
    done = 0
    wrong: list[str] = []

    def compare(found: dict[str, tuple[torch.Tensor, torch.Tensor]], words: str) -> None:
        nonlocal done
        for name, (out, expected) in found.items():
            done += 1
            if bits(out) != bits(expected):
                wrong.append(f"{name} {words}")

    def attempt(words: str, operation: Callable[[], dict[str, Any]]) -> None:
        try:
            compare(operation(), words)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            wrong.append(f"{words}: {str(error).splitlines()[0]}")

    for async_op in (False, True):
        for dtype in MOVED:
            attempt(f"{dtype}", functools.partial(moves, dtype, async_op))
        for dtype in REDUCED:
            for name in OPS:
                op = getattr(dist.ReduceOp, name)
                attempt(f"{dtype} {name}", functools.partial(reductions, dtype, op, async_op))
        sums = COMPLEX + (FLOAT8 if torch.cuda.get_device_capability() >= FLOAT8_FROM else [])
        for dtype in sums:
            op = dist.ReduceOp.SUM
            attempt(f"{dtype} SUM", functools.partial(reductions, dtype, op, async_op))
        for dtype in AVERAGED:
            average = dist.ReduceOp.AVG
            attempt(f"{dtype} AVG", functools.partial(reductions, dtype, average, async_op))
    for dtype in AVERAGED:
        tensor = made([4, 8], dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        compare({"all_reduce": (tensor, made([2, 4], dtype))}, f"{dtype} PREMUL_SUM")
    tensor = made([True, False], torch.bool)
    dist.all_reduce(tensor)
    compare({"all_reduce": (tensor, made([True, False], torch.bool))}, "torch.bool SUM")
    dist.barrier()
    dist.destroy_process_group()
    assert not wrong, f"{len(wrong)} of {done} wrong: {'; '.join(wrong[:8])}"
    reduced = len(REDUCED) + len(sums) + 1
    return f"{done} operations, {len(MOVED)} dtypes moved, {reduced} reduced"


# ---- streams and graphs

SLOW = 1000  # milliseconds


def ordered(async_op: bool, old: torch.Tensor, new: torch.Tensor) -> float:
    """One operation behind a slow kernel; gives how long the host was held, in milliseconds. An
    asynchronous one is waited for on a stream that nothing else holds up."""
    source, out, seen, beside = (old.clone() for _ in range(4))
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    reader = torch.cuda.Stream() if async_op else producer
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        began = time.monotonic()
        occupy(SLOW)
        source.copy_(new)
        work = dist.all_gather_into_tensor(out, source, async_op=async_op)
    with torch.cuda.stream(reader):
        if work is not None:
            assert not work.is_completed(), "an asynchronous operation was over at once"
            work.wait()
        seen.copy_(out)
        held = (time.monotonic() - began) * 1000
    with torch.cuda.stream(other):
        beside.copy_(new)
        other.synchronize()
    assert not producer.query(), "the slow kernel was not slow, or another stream waited for it"
    reader.synchronize()
    took = (time.monotonic() - began) * 1000
    assert bits(seen) == bits(new), f"async_op={async_op}: something did not wait"
    assert bits(beside) == bits(new)
    assert held < SLOW / 2, f"async_op={async_op}: the host was held for {held:.0f} ms"
    assert took > SLOW / 2, f"the slow kernel took {took:.0f} ms"
    return held


def kept_alive(old: torch.Tensor, new: torch.Tensor) -> None:
    """A tensor that is dropped while its operation waits for a slow kernel."""
    out = old.clone()
    producer = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        gone = new.clone()
        where = gone.data_ptr()
        occupy(SLOW // 2)
        dist.all_gather_into_tensor(out, gone, async_op=True)
        del gone
        again = torch.empty_like(new)
        assert again.data_ptr() != where, "a dropped tensor's memory was free too early"
        again.copy_(old)
    torch.cuda.synchronize()
    assert bits(out) == bits(new)


@check
def stream_order() -> str:
    join()
    old, new = made([1.0] * 4096), made([2.0] * 4096)
    # Everything that is made when it is first needed.
    waited(dist.all_gather_into_tensor(torch.empty_like(old), new, async_op=True))
    occupy(1)
    torch.cuda.synchronize()
    held = [ordered(async_op, old, new) for async_op in (False, True)]
    kept_alive(old, new)
    dist.destroy_process_group()
    return f"host held {held[0]:.1f} ms (sync), {held[1]:.1f} ms (async) behind {SLOW} ms"


REPLAYS = 200


@check
def graph() -> str:
    join()
    values = [made([float(number)] * 512) for number in range(4)]
    source, out, beside, twice = (values[0].clone() for _ in range(4))
    dist.all_gather_into_tensor(out, source)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        dist.all_gather_into_tensor(out, source)
        # Nobody but the graph holds what is gathered here.
        work = dist.all_gather_into_tensor(beside, source.clone(), async_op=True)
        waited(work)
        twice.copy_(beside)
    source.copy_(values[1])
    torch.cuda.synchronize()
    assert bits(out) == bits(values[0]), "the capture ran what it captured"
    for value in values:
        source.copy_(value)
        captured.replay()
        torch.cuda.synchronize()
        for one in (out, beside, twice):
            assert bits(one) == bits(value), "a replay left something else"
    for _ in range(REPLAYS):
        captured.replay()
        # Outside, beside the graph.
    dist.all_gather_into_tensor(beside, values[2])
    torch.cuda.synchronize()
    assert bits(beside) == bits(values[2])
    del captured, work
    torch.cuda.synchronize()
    dist.all_gather_into_tensor(beside, values[1])
    assert bits(beside) == bits(values[1])
    dist.destroy_process_group()
    return f"captured, {REPLAYS + len(values)} replays, destroyed; eager operations go on"


# ---- time-outs


# Of an operation. Joining, of which the first takes seconds, has the communicator's own.
LIMIT = datetime.timedelta(seconds=2)


def native(name: str) -> Any:
    import torchcomms

    torch.cuda.set_device(RANK % torch.cuda.device_count())
    joining = datetime.timedelta(seconds=25)
    found = torchcomms.new_comm("nccl", device(), False, timeout=joining, name=name)
    found.all_reduce(made([1.0]), torchcomms.ReduceOp.SUM)
    occupy(1)
    torch.cuda.synchronize()
    return found


def failure(operation: Callable[[], Any]) -> tuple[str, float]:
    """What an operation fails with, and after how many seconds."""
    began = time.monotonic()
    try:
        operation()
    except RuntimeError as error:
        return str(error).splitlines()[0], time.monotonic() - began
    raise AssertionError("no time-out")


# How long the engine lets NCCL stop what is on the device, by revoking and then by aborting, before
# it goes on without. Until then the caller's buffers may be written to, so the error waits for it.
STOPPING = 2 * 5
# Longer than an error may take; the kernel ends by itself.
SPIN = 14


@check
def time_out() -> str:
    from torchcomms import ReduceOp

    tensor = made([1.0])
    # The clock of an operation starts when the operation does, not while a kernel is before it.
    patient = native("patient")
    occupy(3000)
    patient.all_reduce(tensor, ReduceOp.SUM, async_op=True, timeout=LIMIT).wait_blocking()
    patient.finalize()
    # Whoever waits may have less patience.
    hasty = native("hasty")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        occupy(SPIN * 1000)
        work = hasty.all_reduce(tensor, ReduceOp.SUM, async_op=True)
        words, took = failure(lambda: work.wait(datetime.timedelta(seconds=1)))
    assert took < 1 + STOPPING + 1, f"the error came after {took:.1f} s: {words}"
    assert not stream.query(), "the kernel was over before the time-out"
    _, took_again = failure(lambda: hasty.all_reduce(tensor, ReduceOp.SUM))
    assert took_again < 2, f"a failed communicator answered after {took_again:.1f} s"
    began = time.monotonic()
    hasty.abort()
    aborted = time.monotonic() - began
    torch.cuda.synchronize()
    assert aborted < 10, f"abort took {aborted:.1f} s"
    # The device serves the next communicator.
    native("next").finalize()
    said = words.split(";")[0]
    return (
        f"1 s of patience behind {SPIN} s: error after {took:.1f} s ({said}); abort {aborted:.1f} s"
    )


@check
def peer_spins() -> str:
    """Two ranks: one's stream is occupied, and the other's operation runs into its time-out."""
    from torchcomms import ReduceOp

    tested = native("spun")
    tensor = made([1.0])
    if RANK == 1:
        occupy(6000)
    work = tested.all_reduce(tensor, ReduceOp.SUM, async_op=True, timeout=LIMIT)
    words, took = failure(work.wait_blocking)
    if RANK == 0:
        assert 1 < took < 2 + STOPPING + 1, f"the error came after {took:.1f} s: {words}"
    tested.abort()
    return f"error after {took:.1f} s ({words.split(';')[0]})"


def main() -> int:
    name = sys.argv[1]
    if name == "facts":
        facts()
        return 0
    try:
        said, status = CHECKS[name](), 0
    except Skipped as reason:
        said, status = str(reason), SKIPPED
    except Exception as error:
        traceback.print_exc()
        text = str(error) or traceback.extract_tb(error.__traceback__)[-1].line or ""
        said, status = f"{type(error).__name__}: {text}", 1
    sys.stderr.flush()
    print("DETAIL " + " ".join(said.split()), flush=True)
    # What failed may have left threads that never end.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
