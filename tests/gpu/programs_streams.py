"""Programs of programs.py: order on streams, and what has to live how long."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from programs_common import (
    OURS,
    RANK,
    SIZE,
    Host,
    device,
    empty,
    join,
    made,
    program,
    seen,
    waited,
)


@program
def a_slow_producer_is_waited_for() -> Any:
    """What is on the caller's stream comes first, whether the operation runs there or beside."""
    join()
    host, values = Host(), []
    for async_op in (False, True):
        tensor = made([0] * 64, torch.uint8)
        producer = torch.cuda.Stream()
        started = threading.Event()
        with torch.cuda.stream(producer):
            host.on(producer, lambda event=started: event.wait(60) and None)
            host.fill(producer, tensor, RANK + 1)
            work = dist.all_reduce(tensor, async_op=async_op)
            started.set()
            waited(work)
            values.append(seen(tensor)[:2])
    total = sum(range(1, SIZE + 1))
    assert values == [[total, total]] * 2, values
    dist.destroy_process_group()
    return values


@program
def operations_keep_their_order_on_all_streams() -> Any:
    """One after the other from several streams: the second sees what the first left."""
    join()
    tensor = made([RANK + 1], torch.int64)
    streams = [torch.cuda.Stream() for _ in range(3)]
    current = torch.cuda.current_stream()
    works = []
    for round_ in range(9):
        stream = streams[round_ % 3]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=round_ % 2 == 1)
            works.append(work)
            waited(work)
            dist.all_reduce(tensor)
        current = stream
    torch.cuda.synchronize()
    dist.destroy_process_group()
    assert seen(tensor) == [SIZE**10]
    return seen(tensor)


@program
def operations_do_not_overtake_one_another() -> Any:
    """The second is on a stream that is free, and still comes after the first, which is held up."""
    join()
    if OURS:
        host, gate = Host(), threading.Event()
        tensor = made([RANK + 1], torch.int64)
        held, free = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(held):
            host.on(held, lambda: gate.wait(60) and None)
            dist.all_reduce(tensor)
        with torch.cuda.stream(free):
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        # Time for the second to go wrong.
        threading.Timer(0.5, gate.set).start()
        torch.cuda.synchronize()
        assert seen(tensor) == [sum(range(1, SIZE + 1))]
    dist.destroy_process_group()
    return None


@program
def a_wait_is_for_the_current_stream_alone() -> Any:
    """`wait` does not block the host, and holds back the stream it was called on."""
    join()
    host = Host()
    gate, beside = threading.Event(), threading.Event()
    tensor = made([1] * 8, torch.uint8)
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        host.on(producer, lambda: gate.wait(60) and None)
        work = dist.all_reduce(tensor, async_op=True)
    reader = torch.cuda.Stream()
    order: list[str] = []
    with torch.cuda.stream(reader):
        work.wait()
        host.on(reader, lambda: order.append("reader"))
    assert not work.is_completed()

    def pass_by() -> None:
        order.append("other")
        beside.set()

    host.on(other, pass_by)
    assert beside.wait(60)
    gate.set()
    reader.synchronize()
    assert order == ["other", "reader"], order
    assert seen(tensor) == [SIZE] * 8
    dist.destroy_process_group()
    return order


@program
def the_current_device_may_be_another() -> Any:
    """`wait` holds back the stream of the communicator's device, whichever device is current."""
    join()
    host = Host()
    gate, passed = threading.Event(), threading.Event()
    tensor = made([1] * 8, torch.uint8)
    own, producer = torch.cuda.default_stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        host.on(producer, lambda: gate.wait(60) and None)
        work = dist.all_reduce(tensor, async_op=True)
    with torch.cuda.device(0):
        work.wait()
    host.on(own, passed.set)
    early = passed.wait(0.5)
    gate.set()
    assert passed.wait(60)
    assert not early
    torch.cuda.synchronize()
    assert seen(tensor) == [SIZE] * 8
    dist.destroy_process_group()
    return early


@program
def tensors_may_be_dropped_early() -> Any:
    join()
    host, gate = Host(), threading.Event()
    outs = []
    producer = torch.cuda.Stream()
    with torch.cuda.stream(producer):
        givers = [made([float(RANK + round_)] * 1000) for round_ in range(4)]
        host.on(producer, lambda: gate.wait(60) and None)
        while givers:
            gone = givers.pop(0)
            out = empty(1000 * SIZE)
            dist.all_gather_into_tensor(out, gone, async_op=True)
            del gone
            gc.collect()
            outs.append(out)
            # Would get the dropped tensor's memory, if that were free already.
            host.fill(producer, empty(1000), 0xFF)
    gate.set()
    torch.cuda.synchronize()
    for round_, out in enumerate(outs):
        expected = [float(rank + round_) for rank in range(SIZE) for _ in range(1000)]
        assert seen(out) == expected, round_
    dist.destroy_process_group()
    return None


@program
def futures() -> Any:
    join()
    tensor = made([RANK + 1.0])
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: [done.value()[0].cpu() * 2])
    doubled.wait()
    assert doubled.value()[0].tolist() == [2.0 * sum(range(1, SIZE + 1))]
    assert seen(future.wait()[0]) == [float(sum(range(1, SIZE + 1)))]
    dist.destroy_process_group()
    return None


@program
def memory_pools() -> Any:
    """Tensors in memory of NCCL's own."""
    join()
    if OURS:
        import torchcomms

        allocator = torchcomms.get_mem_allocator("nccl")
    else:
        allocator = dist.distributed_c10d._get_default_group()._get_backend(device()).mem_allocator
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(1000)
    tensor.copy_(torch.full((1000,), RANK + 1.0))
    backend = dist.distributed_c10d._get_default_group()._get_backend(device())
    backend.register_mem_pool(pool)
    dist.all_reduce(tensor)
    assert tensor.cpu().eq(sum(range(1, SIZE + 1))).all()
    checked = OURS and os.environ.get("SIMGPU") == "1"
    if checked:
        assert registered(tensor.data_ptr(), tensor.nbytes) == 1
        backend.register_mem_pool(pool)  # what is registered already stays so
    backend.deregister_mem_pool(pool)
    if checked:
        assert registered() == 0
        backend.register_mem_pool(pool)
        assert registered() == 1
    del backend, tensor, pool
    dist.destroy_process_group()
    if checked:
        assert registered() == 0
    return None


@program
def memory_of_a_backend() -> Any:
    if not OURS:
        return None  # torch's own backend has none on this device
    import torchcomms

    join()
    backend = dist.group.WORLD._get_backend(device())
    assert backend.supports_tensor_alloc(device())
    assert backend.mem_allocator is torchcomms.get_mem_allocator("nccl")
    tensor = backend.allocate_tensor(4, dtype=torch.float32, device=device())
    tensor.copy_(torch.full((4,), RANK + 1.0))
    dist.all_reduce(tensor)
    assert seen(tensor) == [sum(range(1, SIZE + 1))] * 4
    del tensor
    dist.destroy_process_group()
    return None


@program
def a_group_shrinks() -> Any:
    """The last rank leaves, also while an operation is on its way, which torch's own refuses."""
    staying = SIZE - 1
    expected = [[float(sum(range(1, SIZE)))], RANK, staying] if staying > RANK else None
    if not OURS:
        return expected
    join()
    group = dist.new_group(device_id=device())
    dist.all_reduce(made([1.0]), group=group)
    found = None
    if RANK < SIZE - 1:
        smaller = dist.shrink_group([SIZE - 1], group)
        tensor = made([RANK + 1.0])
        dist.all_reduce(tensor, group=smaller)
        found = [seen(tensor), smaller.rank(), smaller.size()]
        dist.destroy_process_group(smaller)
    dist.barrier()
    dist.destroy_process_group()
    return found


def registered(address: int = 0, size: int = 0) -> int:
    """How many registrations with NCCL cover memory, or how many there are: the simulator knows."""
    count = ctypes.CDLL("libnccl.so.2").simgpuNcclRegistered
    count.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    return int(count(address, size))


@program
def a_factor_on_the_device() -> Any:
    """PREMUL_SUM reads a factor on the device when it runs there, not when it is called."""
    join()
    host, gate = Host(), threading.Event()
    tensor, factor = made([1.0 + RANK, 4.0]), made([1.0])
    half = torch.tensor([0.5])
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        host.on(stream, lambda: gate.wait(60) and None)
        host.on(stream, lambda: ctypes.memmove(factor.data_ptr(), half.data_ptr(), 4) and None)
        work = dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), async_op=True)
    gate.set()
    work.wait()
    torch.cuda.synchronize()
    values = [seen(tensor)]
    assert seen(tensor)[1] == 2.0 * SIZE, values
    # Nobody keeps this factor but the operation.
    gate.clear()
    gone, tensor, out = made([0.25]), made([4.0] * SIZE), empty(1)
    with torch.cuda.stream(stream):
        host.on(stream, lambda: gate.wait(60) and None)
        op = dist._make_nccl_premul_sum(gone)
        work = dist.reduce_scatter_tensor(out, tensor, op, async_op=True)
        del gone, op
        gc.collect()
        host.fill(stream, empty(1), 0xFF)
    gate.set()
    work.wait()
    torch.cuda.synchronize()
    values.append(seen(out))
    assert seen(out) == [1.0 * SIZE]
    if OURS:
        # A factor of another dtype is converted on the device, one on the host is read at once.
        for given in (torch.tensor(0.5, dtype=torch.float64), made([0.5], torch.float64)):
            tensor = made([2.0], torch.float64)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(given))
            assert seen(tensor) == [1.0 * SIZE]
    dist.destroy_process_group()
    return values
