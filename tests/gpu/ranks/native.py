"""One rank that calls the simulated NCCL itself: `native.py CASE`."""

import ctypes
import os
import signal
import sys

import calls
from calls import (
    ARGUMENT,
    IN_PROGRESS,
    OK,
    RANK,
    REMOTE,
    SIZE,
    SUM,
    USAGE,
    Buffer,
    Config,
    call,
    check,
    floats,
    join,
    same,
    settle,
    stream,
)


def split() -> None:
    comm, on = join("id"), stream()
    part = ctypes.c_void_p()
    check("ncclCommSplit", comm, RANK % 2, -RANK, ctypes.byref(part), None)
    members = len(range(RANK % 2, SIZE, 2))
    same(calls.place(part), (members - 1 - RANK // 2, members), "place by key")
    calls.sum_is_right(part, on)
    alone = ctypes.c_void_p()
    color = 0 if RANK == 0 else -1
    check("ncclCommSplit", comm, color, 0, ctypes.byref(alone), None)
    same(alone.value is None, RANK != 0, "no communicator without a colour")
    calls.sum_is_right(comm, on)
    for one in (part, alone, comm):
        check("ncclCommDestroy", one)
    same(call("ncclCommCount", comm, ctypes.byref(ctypes.c_int())), ARGUMENT, "destroyed")


def shrink_and_grow() -> None:
    comm, on = join("id"), stream()
    last = SIZE - 1
    if last != RANK:
        less = ctypes.c_void_p()
        excluded = (ctypes.c_int * 1)(last)
        check("ncclCommShrink", comm, excluded, 1, ctypes.byref(less), None, 0)
        same(calls.place(less), (RANK, SIZE - 1), "place after shrinking")
        calls.sum_is_right(less, on)
        given = calls.UniqueId()
        if RANK == 0:
            check("ncclCommGetUniqueId", less, ctypes.byref(given))
            again = call("ncclCommGetUniqueId", less, ctypes.byref(calls.UniqueId()))
            same(again, USAGE, "a second id while the first is not used")
            calls.share("grow", bytes(given))
        more = ctypes.c_void_p()
        mine = ctypes.byref(given) if RANK == 0 else None
        check("ncclCommGrow", less, SIZE, mine, -1, ctypes.byref(more), None)
    else:
        given = calls.UniqueId.from_buffer_copy(calls.share("grow"))
        more = ctypes.c_void_p()
        check("ncclCommGrow", None, SIZE, ctypes.byref(given), RANK, ctypes.byref(more), None)
    same(calls.place(more), (RANK, SIZE), "place after growing")
    calls.sum_is_right(more, on)


def shrink_around_a_dead_rank() -> None:
    comm, on = join("id"), stream()
    calls.sum_is_right(comm, on)
    last = SIZE - 1
    if last == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    buffer = floats(1)
    same(calls.all_reduce(comm, buffer, on), OK, "issuing")
    calls.await_state(comm, REMOTE)
    less = ctypes.c_void_p()
    excluded = (ctypes.c_int * 1)(last)
    check("ncclCommShrink", comm, excluded, 1, ctypes.byref(less), None, 1)
    calls.synchronize(on)
    calls.sum_is_right(less, on)


def without_blocking() -> None:
    comm, on = join("id", Config(blocking=0)), stream()
    same(settle(comm), OK, "state after joining")
    calls.sum_is_right(comm, on)
    part = ctypes.c_void_p()
    code = call("ncclCommSplit", comm, 0, SIZE - RANK, ctypes.byref(part), None)
    same(code, IN_PROGRESS, "split")
    same(settle(part), OK, "state after splitting")
    same(calls.place(part), (SIZE - 1 - RANK, SIZE), "place")
    calls.sum_is_right(part, on)
    same(call("ncclCommFinalize", part), IN_PROGRESS, "finalize")
    same(settle(part), OK, "state after finalizing")
    same(calls.all_reduce(part, floats(1), on), USAGE, "after finalizing")


def abort_while_joining() -> None:
    """The others never come; rank 0 does not block, and gives up."""
    identity = calls.unique_id("id")
    if RANK != 0:
        calls.share("given up")
        return
    comm, config = ctypes.c_void_p(), Config(blocking=0)
    arguments = (ctypes.byref(comm), SIZE, identity, RANK, ctypes.byref(config))
    same(call("ncclCommInitRankConfig", *arguments), IN_PROGRESS, "joining")
    same(calls.state(comm), IN_PROGRESS, "state")
    same(calls.all_reduce(comm, floats(1), stream()), ARGUMENT, "an operation too early")
    check("ncclCommAbort", comm)
    calls.share("given up", b"1")


def abort_while_others_do_not_call() -> None:
    comm, on = join("id"), stream()
    if RANK == 0:
        buffer = floats(1)
        same(calls.all_reduce(comm, buffer, on), OK, "issuing")
        same(calls.DRIVER.cuStreamQuery(on), 600, "the stream is held up")
        check("ncclCommAbort", comm)
        calls.synchronize(on)
        same(list(buffer.values), [1.0], "an aborted operation leaves no result")


def revoke() -> None:
    comm, on = join("id"), stream()
    if RANK == 0:
        same(calls.all_reduce(comm, floats(1), on), OK, "issuing")
    check("ncclCommRevoke", comm, 0)
    calls.synchronize(on)
    same(calls.all_reduce(comm, floats(1), on), USAGE, "after revoking")
    same(call("ncclCommFinalize", comm), USAGE, "finalizing after revoking")
    part = ctypes.c_void_p()
    check("ncclCommSplit", comm, 0, RANK, ctypes.byref(part), None)
    calls.sum_is_right(part, on)


def arguments() -> None:
    comm, on = join("id"), stream()
    buffer = floats(1, 2)
    host = (ctypes.c_float * 2)()
    count = ctypes.c_size_t(2)
    at = buffer.at
    wrong = [
        ("a null communicator", ("ncclAllReduce", at, at, count, 7, SUM, None, on)),
        ("an unknown communicator", ("ncclAllReduce", at, at, count, 7, SUM, on, on)),
        ("a null buffer", ("ncclAllReduce", None, at, count, 7, SUM, comm, on)),
        ("memory of the host", ("ncclAllReduce", host, at, count, 7, SUM, comm, on)),
        ("a datatype", ("ncclAllReduce", at, at, count, 12, SUM, comm, on)),
        ("a reduction", ("ncclAllReduce", at, at, count, 7, 17, comm, on)),
        ("a root", ("ncclBroadcast", at, at, count, 7, SIZE, comm, on)),
        ("a root below zero", ("ncclReduce", at, at, count, 7, SUM, -1, comm, on)),
        ("a peer", ("ncclSend", at, count, 7, SIZE, comm, on)),
        ("a count", ("ncclAllReduce", at, at, ctypes.c_size_t(1 << 20), 7, SUM, comm, on)),
    ]
    for what, given in wrong:
        same(call(*given), ARGUMENT, what)
        if not calls.last_error():
            raise AssertionError(f"{what}: no text")
        check("ncclGroupStart")
        same(call(*given), ARGUMENT, f"{what}, in a group")
        same(call("ncclGroupEnd"), ARGUMENT, f"{what}, at the group's end")
    same(call("ncclGroupEnd"), USAGE, "an end without a start")
    same(calls.DRIVER.cuStreamQuery(on), 0, "nothing was put on the stream")
    calls.sum_is_right(comm, on)
    config = Config()
    config.size = 120
    made = ctypes.c_void_p()
    given = ("ncclCommInitRankConfig", ctypes.byref(made), 1, calls.UniqueId(), 0)
    same(call(*given, ctypes.byref(config)), ARGUMENT, "a configuration of a newer NCCL")
    same(call(*given, None), ARGUMENT, "an id of nobody")


def reductions() -> None:
    comm, on = join("id"), stream()
    total = SIZE * (SIZE + 1) // 2
    scalar = ctypes.c_float(0.5)
    made = ctypes.c_int()
    check("ncclRedOpCreatePreMulSum", ctypes.byref(made), ctypes.byref(scalar), 7, 1, comm)
    scalar.value = 9
    buffer = floats(RANK + 1)
    same(calls.all_reduce(comm, buffer, on, op=made.value), OK, "a scalar of the host")
    calls.synchronize(on)
    same(list(buffer.values), [total / 2], "premultiplied sum")
    wrong = Buffer(ctypes.c_double, [1])
    code = calls.all_reduce(comm, wrong, on, calls.FLOAT64, made.value)
    same(code, ARGUMENT, "a reduction of another type")
    check("ncclRedOpDestroy", made, comm)
    same(calls.all_reduce(comm, buffer, on, op=made.value), ARGUMENT, "a destroyed reduction")
    there = floats(2)
    check("ncclRedOpCreatePreMulSum", ctypes.byref(made), there.at, 7, 0, comm)
    there.values[0] = 3
    buffer = floats(RANK + 1)
    same(calls.all_reduce(comm, buffer, on, op=made.value), OK, "a scalar of the device")
    calls.synchronize(on)
    same(list(buffer.values), [3 * total], "read when it runs")
    eights = Buffer(ctypes.c_uint8, [0x38])
    same(calls.all_reduce(comm, eights, on, calls.E4M3), OK, "e4m3")
    calls.synchronize(on)
    same(list(eights.values), [{1: 0x38, 2: 0x40, 4: 0x48}[SIZE]], "a sum of ones in e4m3")


class Wait(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("count", "peer", "signal", "context")]


def windows() -> None:
    comm, on = join("id"), stream()
    target = Buffer(ctypes.c_float, [0.0] * 16, windowed=True)
    source = Buffer(ctypes.c_float, [0.0] * 16, windowed=True)
    length = ctypes.c_size_t(64)
    there, here = ctypes.c_void_p(), ctypes.c_void_p()
    check("ncclCommWindowRegister", comm, target.at, length, ctypes.byref(there), 0)
    check("ncclCommWindowRegister", comm, source.at, length, ctypes.byref(here), 0)
    plain = floats(1)
    code = call("ncclCommWindowRegister", comm, plain.at, length, ctypes.byref(here), 0)
    same(code, ARGUMENT, "memory that is not ncclMemAlloc's")
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    offset, two = ctypes.c_size_t(8), ctypes.c_size_t(2)
    for step in range(5):
        source.values[:2] = [step, RANK]
        put = (right, there, offset, 0, 0, 0, comm, on)
        check("ncclPutSignal", source.at, two, 7, *put)
        check("ncclSignal", right, 0, 0, 0, comm, on)
        # One wait for both, so that a count that is off shows in the next round.
        check("ncclWaitSignal", 1, ctypes.byref(Wait(2, left, 0, 0)), comm, on)
        calls.synchronize(on)
        same(list(target.values[2:4]), [step, left], f"step {step}")
        calls.sum_is_right(comm, on)
    far = ctypes.c_size_t(64 - 4)
    put = (right, there, far, 0, 0, 0, comm, on)
    same(call("ncclPutSignal", source.at, two, 7, *put), ARGUMENT, "past the window's end")
    put = (right, there, offset, 0, 0, 0, comm, on)
    same(call("ncclPutSignal", plain.at, ctypes.c_size_t(1), 7, *put), ARGUMENT, "from no window")
    check("ncclCommWindowDeregister", comm, there)
    same(call("ncclCommWindowDeregister", comm, there), ARGUMENT, "deregistered twice")


def several_ids() -> None:
    ids = (calls.UniqueId * 2)(calls.unique_id("one"), calls.unique_id("two"))
    comm = ctypes.c_void_p()
    check("ncclCommInitRankScalable", ctypes.byref(comm), SIZE, RANK, 2, ids, None)
    calls.sum_is_right(comm, stream())


def suspend() -> None:
    comm, on = join("id"), stream()
    value = ctypes.c_uint64()
    check("ncclCommSuspend", comm, 1)
    check("ncclCommMemStats", comm, 1, ctypes.byref(value))
    same(value.value, 1, "suspended")
    same(calls.all_reduce(comm, floats(1), on), USAGE, "while it is suspended")
    check("ncclCommResume", comm)
    calls.sum_is_right(comm, on)


def order_across_streams() -> None:
    """Two operations of one communicator keep their order on different streams."""
    comm, first, second = join("id"), stream(), stream()
    gate = ctypes.c_uint64(1)
    calls.driver("simgpuStreamGate", first, gate)
    one, two = floats(1), floats(2)
    same(calls.all_reduce(comm, one, first), OK, "first")
    same(calls.all_reduce(comm, two, second), OK, "second")
    same(calls.DRIVER.cuStreamQuery(second), 600, "the second waits for the first")
    calls.driver("simgpuGateOpen", gate)
    calls.synchronize(second)
    same((list(one.values), list(two.values)), ([SIZE], [2.0 * SIZE]), "both")


def mismatch() -> None:
    comm, on = join("id"), stream()
    buffer = floats(1, 2)
    same(calls.all_reduce(comm, buffer, on, count=1 + (RANK == 0)), OK, "issuing")
    calls.await_state(comm, USAGE)
    same(calls.DRIVER.cuStreamQuery(on), 600, "it never ends")
    check("ncclCommAbort", comm)
    calls.synchronize(on)


def asynchronous_error() -> None:
    comm, on = join("id"), stream()
    same(calls.state(comm), OK, "before")
    calls.sum_is_right(comm, on)
    same(calls.state(comm), REMOTE if RANK == 1 else OK, "after one operation")


def failing_poll() -> None:
    comm = join("id")
    code = call("ncclCommGetAsyncError", comm, ctypes.byref(ctypes.c_int()))
    same(code, 3 if RANK == 0 else OK, "polling")


def older_version() -> None:
    version = ctypes.c_int()
    check("ncclGetVersion", ctypes.byref(version))
    same(version.value, 22809, "version")


def killed() -> None:
    comm, on = join("id"), stream()
    calls.sum_is_right(comm, on)
    same(calls.all_reduce(comm, floats(1), on), OK, "issuing")
    calls.await_state(comm, REMOTE)
    check("ncclCommAbort", comm)


def never_joins() -> None:
    comm = join("id", Config(blocking=0))
    deadline = 50
    while calls.state(comm) == IN_PROGRESS and deadline:
        deadline -= 1
        signal.sigtimedwait([], 0.01)
    same(calls.state(comm), IN_PROGRESS, "state")
    check("ncclCommAbort", comm)


def hidden_symbol() -> None:
    """The copy without the symbol; the library that is preloaded has it."""
    variant = ctypes.CDLL(os.environ["FERROCOMM_NCCL_LIB"])
    same(hasattr(variant, "ncclCommGrow"), False, "the hidden symbol")
    same(hasattr(variant, "ncclCommSplit"), True, "another symbol")
    same(hasattr(calls.NCCL, "ncclCommGrow"), True, "the whole library")


def driver() -> None:
    """The driver's C functions by themselves."""
    on, entry, found = stream(), ctypes.c_void_p(), ctypes.c_int()
    look_up = calls.DRIVER.cuGetProcAddress_v2
    forms = [(b"cuStreamGetCaptureInfo", 11030, "_v2"), (b"cuStreamGetCaptureInfo", 13000, "_v3")]
    for name, version, form in forms:
        same(look_up(name, ctypes.byref(entry), version, 0, ctypes.byref(found)), 0, "look-up")
        real = ctypes.cast(getattr(calls.DRIVER, name.decode() + form), ctypes.c_void_p)
        same((entry.value, found.value), (real.value, 0), f"{name!r} of {version}")
    same(look_up(b"cuNothing", ctypes.byref(entry), 13000, 0, ctypes.byref(found)), 0, "look-up")
    same((entry.value, found.value), (None, 1), "a name that is not there")

    text = ctypes.c_char_p()
    same(calls.DRIVER.cuGetErrorName(900, ctypes.byref(text)), 0, "a name of a status")
    same(text.value, b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "the name")
    same(calls.DRIVER.cuGetErrorName(12345, ctypes.byref(text)), 1, "no such status")

    word = Buffer(ctypes.c_uint32, [0, 0])
    at = ctypes.c_uint64(word.at.value or 0)
    next_ = ctypes.c_uint64(at.value + 4)
    other = stream()
    calls.driver("cuStreamWaitValue32_v2", on, at, 5, 0)
    calls.driver("cuStreamWriteValue32_v2", on, next_, 9, 0)
    same(calls.DRIVER.cuStreamQuery(on), 600, "waiting for the word")
    calls.driver("cuStreamWriteValue32_v2", other, at, 6, 0)
    calls.synchronize(on)
    same(list(word.values), [6, 9], "words")

    kind, owner = ctypes.c_uint(), ctypes.c_int()
    calls.driver("cuPointerGetAttribute", ctypes.byref(kind), 2, next_)
    calls.driver("cuPointerGetAttribute", ctypes.byref(owner), 9, next_)
    same((kind.value, owner.value), (2, RANK), "kind and device of memory")
    mine = (ctypes.c_char * 8)()
    there = ctypes.c_uint64(ctypes.addressof(mine))
    same(calls.DRIVER.cuPointerGetAttribute(ctypes.byref(kind), 2, there), 1, "plain memory")

    calls.driver("cuStreamDestroy_v2", other)
    same(calls.DRIVER.cuStreamQuery(other), 400, "a stream that was destroyed")
    same(calls.DRIVER.cuMemCreate(), 801, "a function that is not simulated")


def runtime_versions() -> None:
    """Every name of the runtime has the version that programs ask for, simulated or not."""
    runtime = ctypes.CDLL("libcudart.so.13")
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    names = (calls.ROOT / "rust" / "simgpu" / "cudart" / "symbols.txt").read_text().split()
    without = [
        name for name in names if not find(runtime._handle, name.encode(), b"libcudart.so.13")
    ]
    same(without, [], "names without the version")
    same(runtime.cudaGraphDebugDotPrint(), 801, "a function that is not simulated")
    same(runtime.cudaGetLastError(), 801, "the last error")
    same(runtime.cudaGetLastError(), 0, "the last error, once more")


def captured() -> None:
    """A captured operation runs at each launch, and with nobody's help at none."""
    comm, on = join("id"), stream()
    buffer = floats(1)
    graph, executable, nodes = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    calls.driver("cuStreamBeginCapture_v2", on, 1)
    same(calls.all_reduce(comm, buffer, on), OK, "issuing")
    calls.driver("cuStreamEndCapture", on, ctypes.byref(graph))
    calls.driver("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
    same((nodes.value, list(buffer.values)), (1, [1.0]), "before a launch")
    calls.driver("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    calls.driver("cuGraphDestroy", graph)
    for _ in range(3):
        calls.driver("cuGraphLaunch", executable, on)
    calls.synchronize(on)
    same(list(buffer.values), [float(SIZE**3)], "after three launches")
    calls.driver("cuGraphExecDestroy", executable)
    calls.sum_is_right(comm, on)


if __name__ == "__main__":
    calls.start()
    globals()[sys.argv[1]]()
    print("done", flush=True)
