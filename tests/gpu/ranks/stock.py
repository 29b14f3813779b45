"""One rank of torch's own `nccl` backend on the simulator: what the reference can do there."""

import copy
import datetime
import os
import sys
from collections.abc import Callable

import simgpu
import torch
import torch.distributed as dist
from simops import SimOps
from torch.distributed.fsdp import fully_shard

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
TOTAL = SIZE * (SIZE + 1) // 2

DTYPES = [
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def equal(tensor: torch.Tensor, expected: list[float]) -> None:
    got = tensor.cpu().tolist()
    if got != expected:
        raise AssertionError(f"rank {RANK}: got {got}, expected {expected}")


def filled(value: float, count: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, dtype=dtype, device=DEVICE)


def all_reduce() -> None:
    for dtype in DTYPES:
        tensor = filled(RANK + 1, dtype=dtype)
        dist.all_reduce(tensor)
        equal(tensor, [TOTAL] * 3)
    product = 1
    for rank in range(SIZE):
        product *= rank + 1
    for op, expected in [
        (dist.ReduceOp.MAX, SIZE),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.PRODUCT, product),
        (dist.ReduceOp.AVG, TOTAL / SIZE),
        (dist._make_nccl_premul_sum(2.0), 2 * TOTAL),
    ]:
        tensor = filled(RANK + 1)
        dist.all_reduce(tensor, op)
        equal(tensor, [expected] * 3)
    large = filled(1, 3_000_001)
    dist.all_reduce(large)
    if not large.cpu().eq(SIZE).all():
        raise AssertionError("a large all_reduce is wrong")


def collectives() -> None:
    tensor = filled(RANK + 5)
    dist.broadcast(tensor, SIZE - 1)
    equal(tensor, [SIZE + 4] * 3)
    tensor = filled(RANK + 1)
    dist.reduce(tensor, 0)
    if RANK == 0:
        equal(tensor, [TOTAL] * 3)
    parts = [filled(-1, 2) for _ in range(SIZE)]
    dist.all_gather(parts, filled(RANK, 2))
    for rank, part in enumerate(parts):
        equal(part, [rank] * 2)
    whole = filled(-1, 2 * SIZE)
    dist.all_gather_into_tensor(whole, filled(RANK, 2))
    equal(whole, [rank for rank in range(SIZE) for _ in range(2)])
    block = filled(-1, 2)
    dist.reduce_scatter_tensor(block, torch.arange(2.0 * SIZE, device=DEVICE))
    equal(block, [SIZE * 2.0 * RANK, SIZE * (2.0 * RANK + 1)])
    turned = filled(-1, SIZE)
    dist.all_to_all_single(turned, torch.arange(SIZE, device=DEVICE) + 10.0 * RANK)
    equal(turned, [10.0 * rank + RANK for rank in range(SIZE)])
    gathered = [filled(-1, 2) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(filled(RANK, 2), gathered, dst=0)
    for rank, part in enumerate(gathered or []):
        equal(part, [rank] * 2)
    mine = filled(-1, 2)
    dist.scatter(mine, [filled(rank, 2) for rank in range(SIZE)] if RANK == 1 else None, src=1)
    equal(mine, [RANK] * 2)
    dist.barrier()


def uneven() -> None:
    sizes = [rank + 1 for rank in range(SIZE)]
    parts = [filled(-1, size) for size in sizes]
    dist.all_gather(parts, filled(RANK, sizes[RANK]))
    for rank, part in enumerate(parts):
        equal(part, [rank] * sizes[rank])
    out = filled(-1, SIZE * (RANK + 1))
    source = torch.cat([filled(RANK, size) for size in sizes])
    dist.all_to_all_single(out, source, [RANK + 1] * SIZE, sizes)
    equal(out, [rank for rank in range(SIZE) for _ in range(RANK + 1)])


def point_to_point() -> None:
    if RANK == 0:
        dist.send(filled(42), 1)
    elif RANK == 1:
        received = filled(0)
        dist.recv(received, 0)
        equal(received, [42] * 3)
    count = 700_001
    received = filled(-1, count)
    ops = [
        dist.P2POp(dist.isend, filled(RANK, count), (RANK + 1) % SIZE),
        dist.P2POp(dist.irecv, received, (RANK - 1) % SIZE),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if not received.cpu().eq((RANK - 1) % SIZE).all():
        raise AssertionError("a large message is wrong")


def sub_groups() -> None:
    evens = dist.new_group(list(range(0, SIZE, 2)))
    if RANK % 2 == 0:
        tensor = filled(1)
        dist.all_reduce(tensor, group=evens)
        equal(tensor, [len(range(0, SIZE, 2))] * 3)
    pairs = [[rank, rank + 1] for rank in range(0, SIZE, 2)]
    pair = dist.split_group(split_ranks=pairs)
    tensor = filled(RANK + 1)
    dist.all_reduce(tensor, group=pair)
    first = RANK - RANK % 2
    equal(tensor, [first + 1 + first + 2] * 3)


def stream_order() -> None:
    """The collective reads what the producer stream writes, after the wait; `wait` of the work lets
    the current stream alone see the result."""
    producer = torch.cuda.Stream()
    tensor = filled(0)
    torch.cuda.synchronize()
    gate = simgpu.Gate(producer)
    with torch.cuda.stream(producer):
        tensor.fill_(RANK + 1)
        work = dist.all_reduce(tensor, async_op=True)
    if work.is_completed():
        raise AssertionError("a collective completed before its input")
    gate.open()
    work.wait()
    equal(tensor, [TOTAL] * 3)


def graph() -> None:
    tensor = filled(1)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        tensor.mul_(2)
        dist.all_reduce(tensor)
    equal(tensor, [1] * 3)
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    equal(tensor, [float((2 * SIZE) ** 3)] * 3)
    captured.reset()


def window() -> None:
    """In torch's own backend a put signals by itself."""
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(DEVICE)
    if not getattr(backend, "supports_window", False):
        print("skipped: this torch has no windows")
        return
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        target = torch.empty(1024, device=DEVICE)
        source = torch.empty(1024, device=DEVICE)
    there = backend.new_window(target)
    here = backend.new_window(source)
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for step in range(5):
        source.fill_(100 * step + RANK)
        dist.barrier()
        there.put(source[:4], right, 8, False)
        there.wait_signal(left, False)
        torch.cuda.synchronize()
        equal(target[8:12], [100 * step + left] * 4)
    dist.barrier()
    there.tensor_deregister()
    here.tensor_deregister()


def data_parallel() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    reference = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    parallel = torch.nn.parallel.DistributedDataParallel(model.to(DEVICE), device_ids=[RANK])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    batch = torch.randn(4 * SIZE, 8)
    mine = batch[4 * RANK : 4 * RANK + 4].to(DEVICE)
    parallel(mine).pow(2).mean().backward()
    optimizer.step()
    one, bias, two, last = reference
    hidden = torch.relu(batch @ one.t() + bias)
    (hidden @ two.t() + last).pow(2).mean().backward()
    for got, start in zip(model.parameters(), reference, strict=True):
        expected = start.detach() - 0.1 * start.grad
        torch.testing.assert_close(got.detach().cpu(), expected, atol=1e-6, rtol=1e-5)


def fully_sharded() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    reference = copy.deepcopy(model)
    batch = torch.randn(4 * SIZE, 8)
    mine = batch[4 * RANK : 4 * RANK + 4].to(DEVICE)
    model.to(DEVICE)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    for module, data in ((model, mine), (reference, batch)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(data).pow(2).mean().backward()
            optimizer.step()
    for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
        whole = got.full_tensor().detach().cpu()
        torch.testing.assert_close(whole, expected.detach(), atol=1e-6, rtol=1e-5)


CASES: list[Callable[[], None]] = [
    all_reduce,
    collectives,
    uneven,
    point_to_point,
    sub_groups,
    stream_order,
    graph,
    window,
    data_parallel,
    fully_sharded,
]


def main() -> None:
    if not simgpu.is_simulated():
        raise SystemExit("not on the simulator: run me through tests/gpu/sim.py")
    torch.set_num_threads(1)
    torch.cuda.set_device(DEVICE)
    backend = sys.argv[1] if len(sys.argv) > 1 else "nccl"
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, device_id=DEVICE, timeout=limit)
    with SimOps():
        for case in CASES:
            case()
            print(f"{case.__name__}: ok", flush=True)
    dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main()
