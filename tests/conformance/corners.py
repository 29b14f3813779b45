"""Fixed cases that the product of factors does not hold, each a function of a session.

Each returns what must be alike on all ranks of a group.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import zlib
from collections.abc import Callable

import barriers  # noqa: F401  (its cases are in the list, too)
import numpy as np
import torch
from buffers import plain
from calls import Request, prepare, reduce_op
from corner import CORNERS, corner, rows_of, step
from elements import Difference, Reduction, compare, draw, reduced, width
from factors import COMPLEX, DTYPES, OPERATIONS, OPS, REDUCING, SIZES, elements, supported
from modes import Digests, Step, checked, finish
from session import Delay, Session

import torchcomms

__all__ = ["CORNERS"]

_SUM = torchcomms.ReduceOp.SUM


# ---- refusals and dtypes


@corner
def refused_reductions(session: Session, _seed: int) -> Digests:
    """Every op on every dtype that has it not: one clear error, alike everywhere; nothing moved."""
    comm = session.world
    texts: Digests = {}
    for dtype in DTYPES:
        for op in [name for name in OPS if not supported(name, dtype)]:
            for operation in REDUCING:
                label = f"{operation} {op} {dtype}"
                prepared = prepare(Request(operation, dtype, 5, op=op), session.place(comm))
                before = [buffer.read().copy() for _, buffer in prepared.buffers]
                for asynchronous in (False, True):
                    texts[f"{label} {asynchronous}"] = _refusal(
                        functools.partial(prepared.issue, comm, asynchronous), label
                    )
                for content, (name, buffer) in zip(before, prepared.buffers, strict=True):
                    compare(buffer.read(), content, f"refused {label}, {name}")
        tensor = torch.tensor([session.rank + 1])
        comm.all_reduce(tensor, _SUM)
        if int(tensor) != session.size * (session.size + 1) // 2:
            raise Difference(f"all_reduce after refusals: got {int(tensor)}")
    return texts


def _refusal(call: Callable[[], object], label: str) -> int:
    """The text of the refusal, without what differs between ranks, as a number."""
    try:
        call()
    except NotImplementedError as error:
        text = re.sub(r"rank \d+|sequence \d+", "", str(error))
        if "not supported" not in text:
            raise Difference(f"{label}: refused with {error}, which does not say so") from None
        return zlib.crc32(text.encode())
    raise Difference(f"{label}: got no error, expected NotImplementedError")


@corner
def other_dtypes_move(session: Session, seed: int) -> Digests:
    """Every dtype of torch that bytes can be viewed as is moved, and never reduced."""
    comm, digests = session.world, {}
    own, ranks = session.rank, range(session.size)
    known = {getattr(torch, name) for name in DTYPES}
    others = {d for d in vars(torch).values() if isinstance(d, torch.dtype)} - known
    for dtype in sorted(others, key=str):
        inputs = [draw("uint8", "usual", seed, rank, 0, 48).reshape(-1) for rank in ranks]
        try:
            mine = torch.from_numpy(inputs[own].copy()).view(dtype)
            outputs = [torch.zeros(48, dtype=torch.uint8).view(dtype) for _ in ranks]
            sent = [torch.from_numpy(inputs[own].copy()).view(dtype) for _ in ranks]
            received = [torch.zeros(48, dtype=torch.uint8).view(dtype) for _ in ranks]
        except (RuntimeError, TypeError):
            continue  # no storage of its own: a name alone, or quantized
        comm.all_gather(outputs, mine)
        comm.all_to_all(received, sent, async_op=True).wait()
        comm.broadcast(mine, session.size - 1)
        for rank in ranks:
            for name, got in (("all_gather", outputs[rank]), ("all_to_all", received[rank])):
                content = got.view(torch.uint8).numpy()
                compare(content.reshape(-1, 1), inputs[rank].reshape(-1, 1), f"{name} {dtype}")
        content = mine.view(torch.uint8).numpy().reshape(-1, 1)
        compare(content, inputs[-1].reshape(-1, 1), f"broadcast {dtype}")
        digests[str(dtype)] = _refusal(functools.partial(comm.all_reduce, mine, _SUM), str(dtype))
    return digests


@corner
def truth_of_any_byte(session: Session, seed: int) -> Digests:
    """A bool whose byte is neither 0 nor 1 reads as true; results are 0 or 1; moves keep bytes."""
    digests: Digests = {}
    content = [
        np.array([[0], [1], [2], [255], [128]], np.uint8)[(np.arange(600) * (r + 3) + seed) % 5]
        for r in range(session.size)
    ]
    for op in [name for name in OPS if supported(name, "bool")]:
        tensor = plain(content[session.rank], "bool")
        session.world.all_reduce(tensor, reduce_op(op))
        wanted = Reduction(content, op, "bool", True)
        compare(rows_of(tensor), wanted, f"all_reduce {op} of any bytes")
        digests[op] = zlib.crc32(rows_of(tensor).tobytes())
    tensor = plain(content[session.rank], "bool")
    session.world.broadcast(tensor, 0)
    compare(rows_of(tensor), content[0], "broadcast of any bytes")
    return digests


@corner
def lazy_views(session: Session, seed: int) -> Digests:
    """Conjugated and negated views mean what they read as, as inputs and as outputs."""
    comm, ranks = session.world, range(session.size)
    for dtype in COMPLEX[1:]:
        inputs = [draw(dtype, "usual", seed, rank, 0, 333) for rank in ranks]
        tensors = [plain(rows, dtype) for rows in inputs]
        views = [t.conj() for t in tensors]
        read = [rows_of(v.resolve_conj()) for v in views]
        total = views[session.rank]
        comm.all_reduce(total, _SUM)
        wanted = Reduction(read, "SUM", dtype, session.exact)
        compare(rows_of(total.resolve_conj()), wanted, f"all_reduce of a conjugated {dtype}")
        tensors = [plain(rows, dtype) for rows in inputs]
        negative = [torch._neg_view(t) for t in tensors]
        outputs = [torch._neg_view(plain(inputs[0], dtype)) for _ in ranks]
        comm.all_gather(outputs, negative[session.rank])
        for rank in ranks:
            right = rows_of(negative[rank].resolve_neg())
            compare(rows_of(outputs[rank].resolve_neg()), right, f"all_gather of negated {dtype}")
    return {}


@corner
def expanded_inputs(session: Session, seed: int) -> Digests:
    """Inputs whose elements share memory are read; outputs of that kind are refused."""
    comm, ranks = session.world, range(session.size)
    inputs = [draw("float32", "usual", seed, rank, 0, 7) for rank in ranks]
    own = plain(inputs[session.rank], "float32").unsqueeze(1).expand(7, 5)
    outputs = [torch.zeros(7, 5) for _ in ranks]
    comm.all_gather(outputs, own)
    for rank in ranks:
        wanted = np.repeat(inputs[rank], 5, axis=0)
        compare(rows_of(outputs[rank]), wanted, "all_gather of expanded tensors")
    output = torch.zeros(7, 5)
    comm.reduce_scatter(output, [own] * session.size, _SUM)
    repeated = [np.repeat(rows, 5, axis=0) for rows in inputs]
    wanted_sum = Reduction(repeated, "SUM", "float32", session.exact)
    compare(rows_of(output), wanted_sum, "reduce_scatter of one tensor several times")
    for output in (torch.ones(1).expand(4), torch.ones(3, 1).expand(3, 2)):
        try:
            comm.all_reduce(output, _SUM)
        except ValueError as error:
            if "share memory" not in str(error):
                raise
            continue
        raise Difference("an expanded output was accepted")
    return {}


# ---- buffers of the engine used again and again


@corner
def every_size_in_a_row(session: Session, seed: int) -> Digests:
    """all_reduce over all sizes, small after large after small, ranks held up at random."""
    chance = random.Random(seed)
    sizes = [name for name in SIZES if SIZES[name][0] <= 1 << 20] * 3
    chance.shuffle(sizes)
    return _in_a_row(session, seed, [("all_reduce", size) for size in sizes], "jitter")


@corner
def every_operation_in_a_row(session: Session, seed: int) -> Digests:
    """Synchronous, kind after kind with one size, for sizes on both sides of borders."""
    chance = random.Random(seed)
    calls = [(name, size) for name in OPERATIONS for size in ("8", "40+1e", "4K", "4K+1e", "64K")]
    chance.shuffle(calls)
    return _in_a_row(session, seed, calls, "one_late")


def _in_a_row(session: Session, seed: int, calls: list[tuple[str, str]], kind: str) -> Digests:
    delay = Delay(kind, seed, session.rank, session.size)
    steps = []
    for number, (operation, size) in enumerate(calls):
        measure = "whole" if OPERATIONS[operation].parts else "part"
        count = elements(size, 4, session.size, measure)
        root = ("first", "middle", "last")[number % 3]
        request = Request(operation, "float32", count, root=root, salt=seed + number)
        steps.append(step(session, request))
    for _, comm, prepared in steps:
        delay.perhaps()
        finish(prepared.issue(comm, False))
    return checked(steps)


def _runs_ahead(session: Session, seed: int, operation: str, size: str, turns: int) -> Digests:
    """One rank issues everything at once while the others are slow to begin."""
    delay = Delay("jitter", seed, session.rank, session.size)
    count = elements(size, 4, 1, "part")
    runner = session.size - 1
    steps = [
        step(session, Request(operation, "float32", count, root="last", salt=seed + turn))
        for turn in range(turns)
    ]
    works = []
    for _, comm, prepared in steps:
        if session.rank != runner:
            delay.perhaps()
        works.append(prepared.issue(comm, session.rank == runner))
    for each in works:
        finish(each)
    return checked(steps)


def _register_runs_ahead() -> None:
    for operation in ("broadcast", "scatter", "reduce", "gather", "all_reduce", "all_gather"):
        for size, turns in (("8", 150), ("4K+1e", 40), ("64K+1e", 12)):

            def body(
                session: Session, seed: int, o: str = operation, s: str = size, t: int = turns
            ) -> Digests:
                return _runs_ahead(session, seed, o, s, t)

            body.__name__ = f"runs_ahead_{operation}_{size.replace('+', 'p')}"
            corner(body)


_register_runs_ahead()


@corner
def roots_take_turns(session: Session, seed: int) -> Digests:
    """Broadcasts and reductions whose root goes around: each is sender now, receiver next."""
    delay = Delay("jitter", seed, session.rank, session.size)
    comm, digests = session.world, {}
    for turn in range(60):
        root = turn % session.size
        count = (10, 1030, 20_000)[turn % 3]
        content = [draw("float32", "usual", seed + turn, r, 0, count) for r in range(session.size)]
        moved, combined = (plain(content[session.rank], "float32") for _ in range(2))
        delay.perhaps()
        comm.broadcast(moved, root)
        comm.reduce(combined, root, _SUM)
        compare(rows_of(moved), content[root], f"broadcast {turn} from {root}")
        if session.rank == root:
            wanted = Reduction(content, "SUM", "float32", session.exact)
            compare(rows_of(combined), wanted, f"reduce {turn} to {root}")
        digests[f"broadcast {turn}"] = zlib.crc32(rows_of(moved).tobytes())
    return digests


@corner
def the_same_bits_again(session: Session, seed: int) -> Digests:
    """One sum, synchronous, in flight, over two communicators: always the same bits."""
    digests: Digests = {}
    for size in ("40", "4K", "4K+1e", "64K+1e", "512K+1e"):
        count = elements(size, 4, 1, "part")
        own = draw("float32", "usual", seed, session.rank, 0, count)
        tensors = [plain(own, "float32") for _ in range(6)]
        comms = [session.world, session.world, session.other, session.other] + [session.world] * 2
        comms[0].all_reduce(tensors[0], _SUM)
        works = [
            comm.all_reduce(tensor, _SUM, async_op=True)
            for comm, tensor in zip(comms[1:], tensors[1:], strict=True)
        ]
        finish(works)
        first = rows_of(tensors[0])
        for number, tensor in enumerate(tensors):
            compare(rows_of(tensor), first, f"{size}: the sum a time more, {number}")
        digests[size] = zlib.crc32(first.tobytes())
    return digests


@corner
def average_of_what_overflows(session: Session, _seed: int) -> Digests:
    """An AVG whose sum is beyond float16 is right, because it is combined in float32."""
    for dtype, value in (("float16", 60000.0), ("bfloat16", 3.0e38)):
        if dtype == "bfloat16" and session.size > 1:
            continue  # float32 overflows as well
        tensor = torch.full((300,), value, dtype=getattr(torch, dtype))
        rows = rows_of(tensor).copy()
        session.world.all_reduce(tensor, torchcomms.ReduceOp.AVG)
        compare(rows_of(tensor), rows, f"AVG of {value} in {dtype}")
    if session.size == 3:
        values = torch.tensor([(-3, -3, -1)[session.rank]], dtype=torch.int32)
        session.world.all_reduce(values, torchcomms.ReduceOp.AVG)
        if int(values) != -2:
            raise Difference(f"AVG of -3, -3 and -1: got {int(values)}, expected -2")
    return {}


@corner
def one_rounding_of_half_floats(session: Session, _seed: int) -> Digests:
    """Addends that vanish one by one in the half type are seen when they are added in float32."""
    for dtype in ("float16", "bfloat16"):
        kind = getattr(torch, dtype)
        eps = torch.finfo(kind).eps
        tensor = torch.full((65,), 1.0 if session.rank == 0 else eps / 2, dtype=kind)
        session.world.all_reduce(tensor, _SUM)
        exact = torch.tensor(1.0 + (session.size - 1) * eps / 2, dtype=torch.float32).to(kind)
        compare(rows_of(tensor), rows_of(exact.expand(65)), f"1 and {eps / 2} in {dtype}")
    return {}


# ---- many at once


@corner
def a_hundred_messages(session: Session, seed: int) -> Digests:
    """First in, first out: a hundred messages of all lengths to each neighbour, both ways."""
    comm, size, rank = session.world, session.size, session.rank
    if size == 1:
        return {}
    chance = random.Random(seed)
    lengths = [elements(chance.choice(list(SIZES)[:-3]), 4, 1, "part") for _ in range(100)]
    after, before = (rank + 1) % size, (rank - 1) % size
    delay = Delay("jitter", seed, rank, size)
    outputs = [torch.zeros(n) for n in lengths]
    works = []
    for number, n in enumerate(lengths):
        if number % 10 == 0:
            delay.perhaps()
        if rank % 2:
            works.append(comm.recv(outputs[number], before, async_op=True))
        sent = plain(draw("float32", "usual", seed + number, rank, 0, n), "float32")
        works.append(comm.send(sent, after, async_op=True))
        if rank % 2 == 0:
            works.append(comm.recv(outputs[number], before, async_op=True))
    random.Random(rank).shuffle(works)
    finish(works)
    for number, (n, output) in enumerate(zip(lengths, outputs, strict=True)):
        wanted = draw("float32", "usual", seed + number, before, 0, n)
        compare(rows_of(output), wanted, f"message {number} of {n} elements")
    return {}


@corner
def batches_of_many_dtypes(session: Session, seed: int) -> Digests:
    """One batch holds every dtype, and messages of no elements."""
    comm, size, rank = session.world, session.size, session.rank
    for turn in range(3):
        batch, outputs = comm.batch_op_create(), []
        after, before = (rank + 1 + turn) % size, (rank - 1 - turn) % size
        for number, dtype in enumerate(DTYPES):
            count = (0, 1, 37, 5000)[(number + turn) % 4]
            own = plain(draw(dtype, "usual", seed + number, rank, 0, count), dtype)
            output = plain(np.zeros((count, width(dtype)), np.uint8), dtype)
            outputs.append((dtype, number, count, output))
            batch.recv(output, before)
            batch.send(own, after)
        finish([batch.issue(async_op=turn == 1)])
        for dtype, number, count, output in outputs:
            wanted = draw(dtype, "usual", seed + number, before, 0, count)
            compare(rows_of(output), wanted, f"batch {turn}, {dtype}")
        finish([batch.issue()])  # empty again
    return {}


@corner
def many_groups_at_once(session: Session, seed: int) -> Digests:
    """Twelve communicators, split and split again, all with operations in flight."""
    comms = [("world", session.world), (session.half, session.halves)]
    made = []
    for number in range(5):
        turned = [(r + number) % session.size for r in range(session.size)]
        child = session.world.split(turned, f"turned{number}")
        assert child is not None
        made.append((f"turned{number}", child))
        first, rest = turned[:1], turned[1:]
        parts = [
            session.world.split(p, f"part{number}{i}") for i, p in enumerate((first, rest)) if p
        ]
        for i, part in enumerate(parts):
            if part is not None:
                made.append((f"part{number}{i}", part))
    own = random.Random(f"{seed} {session.rank}")
    steps: list[Step] = []
    works = []
    order = comms + made
    own.shuffle(order)
    for turn in range(6):
        for name, comm in order:
            operation = ("all_reduce", "all_to_all", "broadcast")[turn % 3]
            request = Request(operation, "float32", (9, 1500, 30_000)[turn // 2], salt=seed + turn)
            prepared = prepare(request, session.place(comm))
            steps.append((f"{name}/{turn}", comm, prepared))
            works.append(prepared.issue(comm, True))
    own.shuffle(works)
    for each in works:
        finish(each)
    digests: Digests = {}
    for name, _, prepared in steps:
        prepared.check()
        if prepared.common:
            digests[name] = prepared.digest()
    for _, comm in made:
        comm.finalize()
    return digests


@corner
def a_split_among_pending_operations(session: Session, seed: int) -> Digests:
    """Splitting takes its turn among operations; the child works while the parent's are pending."""
    delay = Delay("jitter", seed, session.rank, session.size)
    steps: list[Step] = []
    works: list[list[torchcomms.TorchWork]] = []
    children = []
    for turn in range(4):
        for _ in range(3):
            request = Request("all_reduce", "float32", 20_000, salt=seed + len(steps))
            steps.append(step(session, request))
            works.append(steps[-1][2].issue(session.world, True))
        delay.perhaps()
        child = session.world.split(list(range(session.size)), f"child{turn}")
        assert child is not None
        children.append(child)
        prepared = prepare(Request("all_gather", "int16", 700, salt=seed), session.place(child))
        steps.append((f"child{turn}", child, prepared))
        works.append(prepared.issue(child, True))
    for each in reversed(works):
        finish(each)
    digests = checked(steps)
    for child in children:
        child.finalize()
    return digests


@corner
def works_nobody_waits_for(session: Session, seed: int) -> Digests:
    """A work that is dropped goes on; finalize waits for it."""
    comm = session.make(f"dropped{seed}")
    steps = []
    for turn, operation in enumerate(("all_reduce", "broadcast", "all_to_all", "reduce_scatter")):
        for count in (3, 5000, 90_000):
            request = Request(operation, "float32", count, salt=seed + turn)
            prepared = prepare(request, session.place(comm))
            steps.append(("dropped", comm, prepared))
            prepared.issue(comm, True)
    comm.finalize()
    return checked(steps)


@corner
def counters_count(session: Session, _seed: int) -> Digests:
    """What a communicator says about itself."""
    comm = session.make("counted")
    for turn in range(5):
        comm.all_reduce(torch.ones(10), _SUM, async_op=turn % 2 == 0).wait()
    comm.barrier()
    info = json.loads(comm.info())
    if info["operations"]["all_reduce"]["count"] != 5 or info["size"] != session.size:
        raise Difference(f"info: {info}")
    comm.finalize()
    return {}


# ---- large


def _large(session: Session, seed: int, operation: str) -> Digests:
    if session.size not in (2, 4):
        return {}
    parts = session.size if OPERATIONS[operation].parts else 1
    count = (20 << 20) // 4 // parts + 1
    return checked(_issued(session, [Request(operation, "float32", count, salt=seed)]))


def _issued(session: Session, requests: list[Request]) -> list[Step]:
    steps = [step(session, request) for request in requests]
    for _, comm, prepared in steps:
        finish(prepared.issue(comm, False))
    return steps


def _register_large() -> None:
    for operation in (
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather_single",
        "reduce_scatter_single",
        "all_to_all_single",
        "gather",
        "send_recv",
    ):

        def body(session: Session, seed: int, o: str = operation) -> Digests:
            return _large(session, seed, o)

        body.__name__ = f"large_{operation}"
        corner(body)


_register_large()


@corner
def the_reference_itself(session: Session, _seed: int) -> Digests:
    """Sums of the reference, done by hand once: a test of the tests."""
    one = np.array([1.5, math.nan, 0.0], np.float32).view(np.uint8).reshape(3, 4)
    two = np.array([2.0, 1.0, -0.0], np.float32).view(np.uint8).reshape(3, 4)
    total = reduced([one, two], "SUM", "float32").reshape(-1).view(np.float32)
    least = reduced([one, two], "MIN", "float32").reshape(-1).view(np.float32)
    if total[0] != 3.5 or not math.isnan(total[1]) or not math.isnan(least[1]):
        raise Difference("the reference does not add")
    if np.signbit(least[2]):
        raise Difference("of equal values the lower rank's stays")
    try:
        compare(one, Reduction([one, two], "SUM", "float32", False), "a difference")
    except Difference as error:
        if "first at index 0" not in str(error):
            raise
        return {}
    raise Difference("a wrong sum was not noticed")
