"""Programs of programs.py: collectives, messages, and groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from programs_common import (
    BEFORE,
    NEXT,
    OURS,
    RANK,
    SIZE,
    device,
    empty,
    join,
    made,
    program,
    seen,
    waited,
)

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}

# What becomes of a 2 from each of so many ranks.
PAIRS = {
    "sum": lambda ranks: 2 * ranks,
    "product": lambda ranks: 2**ranks,
    "min": lambda _ranks: 2,
    "max": lambda _ranks: 2,
}


@program
def reductions() -> Any:
    join()
    seen_values = {}
    for dtype in DTYPES:
        for name, op in OPS.items():
            for async_op in (False, True):
                values = [RANK + 1, 2, RANK + 3]
                tensor = made(values, dtype)
                waited(dist.all_reduce(tensor, op, async_op=async_op))
                key = f"all_reduce {dtype} {name} {async_op}"
                seen_values[key] = seen(tensor)
                assert seen(tensor)[1] == PAIRS[name](SIZE), key
            tensor = made([RANK + 1, RANK + 2], dtype)
            dist.reduce(tensor, SIZE - 1, op)
            if RANK == SIZE - 1:
                seen_values[f"reduce {dtype} {name}"] = seen(tensor)
            tensor = made([rank + RANK + 1 for rank in range(SIZE)], dtype)
            out = empty(1, dtype)
            dist.reduce_scatter_tensor(out, tensor, op)
            seen_values[f"reduce_scatter_tensor {dtype} {name}"] = seen(out)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = made([RANK + 1.0, 4.0], dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        seen_values[f"average {dtype}"] = seen(tensor)
        tensor = made([RANK + 1.0, 4.0], dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        seen_values[f"premul {dtype}"] = seen(tensor)
        assert seen(tensor)[1] == 2.0 * SIZE
    tensor = made([RANK == 0, False, True], torch.bool)
    dist.all_reduce(tensor)
    assert seen(tensor) == [True, False, True]
    assert seen_values["all_reduce torch.int64 min True"] == [1, 2, 3]
    assert seen_values["all_reduce torch.int64 max True"] == [SIZE, 2, SIZE + 2]
    total = sum(range(1, SIZE + 1))
    assert seen_values["all_reduce torch.int64 sum False"] == [total, 2 * SIZE, total + 2 * SIZE]
    dist.destroy_process_group()
    return seen_values


def moved(dtype: torch.dtype, async_op: bool) -> dict[str, Any]:
    def given(*numbers: int) -> list[Any]:
        return torch.tensor(numbers).to(dtype).tolist()

    found, expected = {}, {}
    tensor = made([RANK, 1], dtype)
    waited(dist.broadcast(tensor, SIZE - 1, async_op=async_op))
    found["broadcast"], expected["broadcast"] = tensor, given(SIZE - 1, 1)
    parts = [empty(2, dtype) for _ in range(SIZE)]
    waited(dist.all_gather(parts, made([RANK, 2], dtype), async_op=async_op))
    found["all_gather"] = parts[SIZE - 1]
    expected["all_gather"] = given(SIZE - 1, 2)
    whole = empty(2 * SIZE, dtype)
    waited(dist.all_gather_into_tensor(whole, made([RANK, 3], dtype), async_op=async_op))
    found["all_gather_into_tensor"] = whole
    expected["all_gather_into_tensor"] = given(*(n for rank in range(SIZE) for n in (rank, 3)))
    out = empty(SIZE, dtype)
    mine = made([10 * RANK + rank for rank in range(SIZE)], dtype)
    waited(dist.all_to_all_single(out, mine, async_op=async_op))
    found["all_to_all_single"] = out
    expected["all_to_all_single"] = given(*(10 * rank + RANK for rank in range(SIZE)))
    outs = [empty(1, dtype) for _ in range(SIZE)]
    ins = [made([10 * RANK + rank], dtype) for rank in range(SIZE)]
    waited(dist.all_to_all(outs, ins, async_op=async_op))
    found["all_to_all"], expected["all_to_all"] = outs[0], given(RANK)
    root = RANK == SIZE - 1
    parts = [empty(1, dtype) for _ in range(SIZE)] if root else None
    waited(dist.gather(made([RANK], dtype), parts, SIZE - 1, async_op=async_op))
    if parts:
        found["gather"], expected["gather"] = parts[1], given(1)
    out = empty(1, dtype)
    give = [made([rank], dtype) for rank in range(SIZE)] if root else None
    waited(dist.scatter(out, give, SIZE - 1, async_op=async_op))
    found["scatter"], expected["scatter"] = out, given(RANK)
    values = {name: tensor.cpu().tolist() for name, tensor in found.items()}
    assert values == expected, (dtype, async_op, values, expected)
    return values


@program
def moves() -> Any:
    join()
    values = {
        f"{dtype} {async_op}": moved(dtype, async_op)
        for dtype in [*DTYPES, torch.bool]
        for async_op in (False, True)
    }
    dist.barrier()
    dist.destroy_process_group()
    return values


@program
def unequal_parts() -> Any:
    join()
    lengths = [rank + 1 for rank in range(SIZE)]
    values: dict[str, Any] = {}
    outs = [empty(length) for length in lengths]
    dist.all_gather(outs, made([float(RANK)] * lengths[RANK]))
    values["all_gather"] = [seen(part) for part in outs]
    assert values["all_gather"] == [[float(r)] * lengths[r] for r in range(SIZE)]
    out = empty(lengths[RANK])
    dist.reduce_scatter(out, [made([float(RANK + 1)] * length) for length in lengths])
    values["reduce_scatter"] = seen(out)
    assert values["reduce_scatter"] == [float(sum(range(1, SIZE + 1)))] * lengths[RANK]
    gives = [(RANK + rank) % 3 for rank in range(SIZE)]
    out = empty(sum(gives))
    mine = made([float(10 * RANK + rank) for rank in range(SIZE) for _ in range(gives[rank])])
    dist.all_to_all_single(out, mine, gives, gives)
    values["all_to_all_single"] = seen(out)
    dist.destroy_process_group()
    return values


@program
def messages() -> Any:
    join()
    big = 300_000
    if RANK == 0:
        dist.send(made([42.0] * big), 1)
    elif RANK == 1:
        got = empty(big)
        dist.recv(got, 0)
        assert got.cpu().eq(42).all()
    mine, theirs = made([float(RANK)] * big), empty(big)
    short, words = made([RANK, 7], torch.int64), empty(2, torch.int64)
    operations = [
        dist.P2POp(dist.isend, mine, NEXT),
        dist.P2POp(dist.irecv, theirs, BEFORE),
        dist.P2POp(dist.isend, short, NEXT),
        dist.P2POp(dist.irecv, words, BEFORE),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert theirs.cpu().eq(BEFORE).all()
    assert seen(words) == [BEFORE, 7]
    dist.destroy_process_group()
    return seen(words)


@program
def coalesced() -> Any:
    join()
    tensors = [made([float(RANK + index)]) for index in range(3)]
    with dist._coalescing_manager(device=device(), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    values = [seen(tensor) for tensor in tensors]
    outs = [empty(SIZE) for _ in range(2)]
    with dist._coalescing_manager(device=device()):
        for index, out in enumerate(outs):
            dist.all_gather_into_tensor(out, made([float(RANK + index)]))
    values += [seen(out) for out in outs]
    dist.destroy_process_group()
    return values


# ---- groups


@program
def groups() -> Any:
    join()
    values: dict[str, Any] = {}
    pair = dist.new_group([0, SIZE - 1])
    if RANK in (0, SIZE - 1):
        tensor = made([RANK + 1.0])
        dist.all_reduce(tensor, group=pair)
        values["pair"] = seen(tensor)
        assert values["pair"] == [SIZE + 1.0]
    halves = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
    half = dist.split_group(split_ranks=halves)
    tensor = made([RANK + 1.0])
    dist.all_reduce(tensor, group=half)
    values["half"] = seen(tensor)
    mine = halves[0] if RANK < SIZE // 2 else halves[1]
    assert values["half"] == [float(sum(rank + 1 for rank in mine))]
    dist.all_reduce(tensor)
    values["all"] = seen(tensor)
    dist.destroy_process_group()
    return values


@program
def both_devices() -> Any:
    join("cpu:gloo,cuda:nccl")
    here, there = torch.tensor([RANK + 1.0]), made([RANK + 1.0])
    dist.all_reduce(here)
    dist.all_reduce(there)
    assert seen(here) == seen(there) == [float(sum(range(1, SIZE + 1)))]
    if OURS:
        import torchcomms

        facts = torchcomms.engine_info()["groups"]
        served = {group["device"]: group["communicator"]["engine"] for group in facts}
        assert served == {"cpu": "host", "cuda": "nccl"}, served
    dist.destroy_process_group()
    return seen(there)


@program
def made_again() -> Any:
    for round_ in range(3):
        join()
        tensor = made([float(RANK + round_)])
        dist.all_reduce(tensor)
        assert seen(tensor) == [float(sum(range(SIZE)) + SIZE * round_)]
        dist.destroy_process_group()
    return None
