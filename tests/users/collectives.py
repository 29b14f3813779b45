"""Every collective of torch.distributed on CPU tensors, on the engine and on torch's own gloo.

    TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 torchrun --nproc_per_node=4 tests/users/collectives.py

Both groups live in the same processes and get the same inputs. Integers and moved data must agree
in every bit, floats within n roundings, and at 2 ranks in every bit too. Exit code 1 otherwise, or
when the engine did not serve.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import config

Result = list[torch.Tensor]
Call = Callable[[], Result]

REDUCED = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16)
REDUCED += (torch.float32, torch.float64)
MOVED = (*REDUCED, torch.bool, torch.int16, torch.complex64)
SHAPES = ((5,), (3, 7), (129, 65), (0, 4))
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, part: int = 0) -> torch.Tensor:
    """Rank `rank`'s input, the same in every run."""
    generator = torch.Generator().manual_seed(7 + 100 * rank + part)
    if dtype.is_floating_point or dtype.is_complex:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


def movements(group: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[tuple[str, Call]]:
    """Named calls that move data."""
    me, size = dist.get_rank(group), dist.get_world_size(group)

    def mine(part: int = 0) -> torch.Tensor:
        return values(me, shape, dtype, part)

    def many() -> Result:
        return [torch.zeros(shape, dtype=dtype) for _ in range(size)]

    def stacked() -> torch.Tensor:
        return torch.zeros((shape[0] * size, *shape[1:]), dtype=dtype)

    def broadcast() -> Result:
        tensor = mine()
        dist.broadcast(tensor, size - 1, group=group)
        return [tensor]

    def all_gather() -> Result:
        out = many()
        dist.all_gather(out, mine(), group=group)
        return out

    def all_gather_into_tensor() -> Result:
        out = stacked()
        dist.all_gather_into_tensor(out, mine(), group=group)
        return [out]

    def gather() -> Result:
        out = many() if me == 0 else None
        dist.gather(mine(), out, dst=0, group=group)
        return out or []

    def scatter() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        parts = [mine(p) for p in range(size)] if me == size - 1 else None
        dist.scatter(out, parts, src=size - 1, group=group)
        return [out]

    def all_to_all() -> Result:
        out = many()
        dist.all_to_all(out, [mine(p) for p in range(size)], group=group)
        return out

    def all_to_all_single() -> Result:
        out = stacked()
        dist.all_to_all_single(out, torch.cat([mine(p) for p in range(size)]), group=group)
        return [out]

    def all_to_all_single_uneven() -> Result:
        sends = [me + p + 1 for p in range(size)]
        out = torch.zeros((sum(sends), *shape[1:]), dtype=dtype)
        given = values(me, (sum(sends), *shape[1:]), dtype)
        dist.all_to_all_single(out, given, sends, sends, group=group)
        return [out]

    def send_recv() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        after, before = (me + 1) % size, (me - 1) % size
        if me % 2 == 0:
            dist.send(mine(), after, group=group, tag=3)
            dist.recv(out, before, group=group, tag=3)
        else:
            dist.recv(out, before, group=group, tag=3)
            dist.send(mine(), after, group=group, tag=3)
        return [out]

    def isend_irecv() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        works = [
            dist.isend(mine(), (me + 1) % size, group=group),
            dist.irecv(out, (me - 1) % size, group=group),
        ]
        for work in works:
            work.wait()
        return [out]

    def batch_isend_irecv() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        calls = [
            dist.P2POp(dist.isend, mine(), (me + 1) % size, group=group),
            dist.P2POp(dist.irecv, out, (me - 1) % size, group=group),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return [out]

    for call in (
        broadcast,
        all_gather,
        all_gather_into_tensor,
        gather,
        scatter,
        all_to_all,
        all_to_all_single,
        all_to_all_single_uneven,
        send_recv,
        isend_irecv,
        batch_isend_irecv,
    ):
        if size > 1 or not call.__name__.endswith(("recv", "irecv")):
            yield f"{call.__name__} {dtype} {shape}", call


def reductions(
    group: Any, dtype: torch.dtype, shape: tuple[int, ...], name: str
) -> Iterator[tuple[str, Call]]:
    """Named calls that reduce with op `name`."""
    me, size = dist.get_rank(group), dist.get_world_size(group)
    op = getattr(dist.ReduceOp, name)

    def mine(part: int = 0) -> torch.Tensor:
        return values(me, shape, dtype, part)

    def all_reduce() -> Result:
        tensor = mine()
        dist.all_reduce(tensor, op, group=group)
        return [tensor]

    def all_reduce_async() -> Result:
        tensor = mine()
        work = dist.all_reduce(tensor, op, group=group, async_op=True)
        work.wait()
        return [tensor]

    def all_reduce_coalesced() -> Result:
        tensors = [mine(p) for p in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            dist.all_reduce_coalesced(tensors, op, group=group)
        return tensors

    def reduce() -> Result:
        tensor = mine()
        dist.reduce(tensor, size - 1, op, group=group)
        # what is left on the other ranks is not promised
        return [tensor] if me == size - 1 else []

    def reduce_scatter() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        dist.reduce_scatter(out, [mine(p) for p in range(size)], op, group=group)
        return [out]

    def reduce_scatter_tensor() -> Result:
        out = torch.zeros(shape, dtype=dtype)
        given = torch.cat([mine(p) for p in range(size)])
        dist.reduce_scatter_tensor(out, given, op, group=group)
        return [out]

    for call in (
        all_reduce,
        all_reduce_async,
        all_reduce_coalesced,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
    ):
        yield f"{call.__name__} {name} {dtype} {shape}", call


def objects(group: Any) -> Iterator[tuple[str, Call]]:
    """Named calls on Python objects and calls without data."""
    me, size = dist.get_rank(group), dist.get_world_size(group)

    def flat(found: Any) -> Result:
        return [torch.tensor(list(repr(found).encode()), dtype=torch.uint8)]

    def all_gather_object() -> Result:
        out: list[Any] = [None] * size
        dist.all_gather_object(out, {"rank": me, "text": "x" * me}, group=group)
        return flat(out)

    def broadcast_object_list() -> Result:
        out = [me, str(me), None] if me == 0 else [None, None, None]
        dist.broadcast_object_list(out, src=0, group=group)
        return flat(out)

    def gather_object() -> Result:
        out: list[Any] | None = [None] * size if me == 0 else None
        dist.gather_object(("rank", me), out, dst=0, group=group)
        return flat(out)

    def scatter_object_list() -> Result:
        out: list[Any] = [None]
        dist.scatter_object_list(out, list(range(size)) if me == 0 else None, src=0, group=group)
        return flat(out)

    def send_object_list() -> Result:
        if size == 1:
            return []
        out: list[Any] = [None, None]
        if me == 0:
            dist.send_object_list(["a", 1], dst=1, group=group)
        elif me == 1:
            dist.recv_object_list(out, src=0, group=group)
        return flat(out)

    def barriers() -> Result:
        dist.barrier(group=group)
        dist.barrier(group=group, async_op=True).wait()
        dist.monitored_barrier(group=group)
        return []

    for call in (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        scatter_object_list,
        send_object_list,
        barriers,
    ):
        yield call.__name__, call


def every_call(group: Any) -> Iterator[tuple[str, Call]]:
    """All of the above, each with a name that is the same on every rank."""
    for shape in SHAPES:
        for dtype in MOVED:
            yield from movements(group, dtype, shape)
        for dtype in REDUCED:
            for op in OPS:
                if op.startswith("B") and dtype.is_floating_point:
                    continue
                yield from reductions(group, dtype, shape, op)
    yield from objects(group)


def difference(name: str, ours: Result, stock: Result, size: int) -> str | None:
    """What differs, in words; None when the results agree as they must."""
    if len(ours) != len(stock):
        return f"{name}: {len(ours)} tensors, stock {len(stock)}"
    for mine, theirs in zip(ours, stock, strict=True):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return f"{name}: {mine.dtype} {mine.shape}, stock {theirs.dtype} {theirs.shape}"
        if torch.equal(mine, theirs):
            continue
        if size > 2 and mine.dtype.is_floating_point and "reduce" in name:
            bound = size * torch.finfo(mine.dtype).eps * theirs.double().abs()
            if bool(((mine.double() - theirs.double()).abs() <= bound).all()):
                continue
        return f"{name}: {mine.flatten()[:4].tolist()}, stock {theirs.flatten()[:4].tolist()}"
    return None


@dataclass
class Comparison:
    """What came of running every call on two groups."""

    compared: int = 0
    refused_by_stock: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def compare(ours: Any, stock: Any) -> Comparison:
    """Runs every call on both groups. What stock refuses, on every rank alike, is only counted."""
    found = Comparison()
    size = dist.get_world_size(stock)
    for (name, call), (_, stock_call) in zip(every_call(ours), every_call(stock), strict=True):
        result = call()
        try:
            expected = stock_call()
        except (RuntimeError, ValueError, TypeError):
            found.refused_by_stock.append(name)
            continue
        found.compared += 1
        fault = difference(name, result, expected, size)
        if fault is not None:
            found.differences.append(fault)
    return found


def main() -> int:
    """Runs as one rank of torchrun; returns the exit code."""
    import torchcomms

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    served = {g["served_by"] for g in torchcomms.engine_info()["groups"]}
    if served != {"ferrocomm"}:
        print(f"the engine did not serve: {served}", file=sys.stderr)
        return 1
    config.use_torchcomms = False
    found = compare(dist.group.WORLD, dist.new_group(backend="gloo"))
    rank = dist.get_rank()
    kinds = sorted({" ".join(name.split()[:2]) for name in found.refused_by_stock})
    for fault in found.differences[:20]:
        print(f"rank {rank}: {fault}", file=sys.stderr)
    if rank == 0:
        print(
            f"{found.compared} calls compared on {dist.get_world_size()} ranks, "
            f"{len(found.differences)} differ; stock refuses {len(found.refused_by_stock)}: "
            f"{', '.join(kinds) or 'none'}"
        )
    dist.destroy_process_group()
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
