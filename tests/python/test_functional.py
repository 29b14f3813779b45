"""Collectives as functions: results, derivatives, and under torch.compile, without graph breaks."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_methods import asynchronous_methods, every_method
from ranks import Rank
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import torchcomms
from torchcomms import ReduceOp, functional
from torchcomms.functional import _methods


def everything(comm: torchcomms.TorchComm, x: Tensor) -> list[Tensor]:
    """Every operation once, on a tensor of 4 rows for 2 ranks; differentiable where they are."""
    rank = comm.get_rank()
    uneven = [1, 3]
    gathered = functional.all_gather(comm, x)
    return [
        functional.all_reduce(comm, x, ReduceOp.SUM),
        functional.all_reduce(comm, x, "avg"),
        functional.reduce(comm, x, 1),
        functional.broadcast(comm, x, 1),
        gathered[0] - 2 * gathered[1],
        functional.all_gather_single(comm, x),
        *functional.all_gather_v(comm, x[: uneven[rank]], uneven),
        functional.reduce_scatter(comm, [x * 2, x * 3]),
        functional.reduce_scatter_single(comm, x, ReduceOp.AVG),
        functional.reduce_scatter_v(comm, [x[:1], x[1:]]),
        functional.all_to_all_single(comm, x),
        functional.all_to_all_v_single(comm, x, [3 - 2 * rank] * 2, [3, 1]),
        *functional.all_to_all(comm, [x, x + 1]),
        functional.scatter(comm, x, 0),
        functional.gather(comm, x, 1),
        functional.gather_single(comm, x, 0),
    ]


def expected(rank: int, xs: list[Tensor]) -> list[Tensor]:
    """What `everything` gives, from the tensors of both ranks, in plain torch."""
    a, b = xs
    at_one = rank == 1
    half = slice(2 * rank, 2 * rank + 2)
    total = a + b
    v_parts = [each[:3] if rank == 0 else each[3:] for each in xs]
    return [
        total,
        total / 2,
        total if at_one else torch.zeros_like(total),
        b.clone(),
        a - 2 * b,
        torch.cat(xs),
        a[:1],
        b[:3],
        total * (2 + rank),
        total[half] / 2,
        total[:1] if rank == 0 else total[1:],
        torch.cat([a[half], b[half]]),
        torch.cat(v_parts),
        a + rank,
        b + rank,
        a[half],
        torch.cat(xs) if at_one else torch.zeros(8, 3),
        torch.zeros(8, 3) if at_one else torch.cat(xs),
    ]


def loss_of(outputs: list[Tensor], rank: int) -> Tensor:
    return sum(((i + 1 + rank) * out.square()).sum() for i, out in enumerate(outputs))  # type: ignore


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(4, 3, generator=generator) for _ in range(2)]


def check(comm: torchcomms.TorchComm, run: Callable[..., Any]) -> None:
    rank = comm.get_rank()
    xs = [x.requires_grad_() for x in inputs()]
    outputs = run(comm, xs[rank])
    wanted = [expected(r, xs) for r in range(2)]
    torch.testing.assert_close(outputs, wanted[rank])
    (grad,) = torch.autograd.grad(loss_of(outputs, rank), xs[rank])
    total = loss_of(wanted[0], 0) + loss_of(wanted[1], 1)
    torch.testing.assert_close(grad, torch.autograd.grad(total, xs)[rank])


def with_and_without_a_graph(me: Rank) -> None:
    comm = me.comm()
    check(comm, everything)
    check(comm, torch.compile(everything, fullgraph=True, backend="aot_eager"))
    comm.finalize()


def test_values_and_derivatives_with_and_without_a_graph(job):
    job(with_and_without_a_graph, 2, limit=180)


def what_graphs_do(me: Rank) -> None:
    first, second = me.comm("same"), me.comm("other").split([1, 0], "same")
    assert second is not None
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def position(comm: torchcomms.TorchComm, x: Tensor) -> Tensor:
        functional.barrier(comm)
        functional.all_reduce(comm, x)  # of no use here, and still done on every rank
        return functional.broadcast(comm, x + comm.get_rank() * 10, 0)

    mine = torch.full((2,), float(me.rank))
    # A graph is compiled per communicator, also where two have one name.
    assert position(first, mine).tolist() == [0.0, 0.0]
    assert position(second, mine).tolist() == [1.0, 1.0]
    assert position(first, mine).tolist() == [0.0, 0.0]
    assert counter.frame_count == 2
    assert copy.deepcopy(first) is first
    assert copy.copy(ReduceOp.SUM) == ReduceOp.SUM

    with pytest.raises(NotImplementedError, match="PREMUL_SUM"):
        functional.all_reduce(first, mine, ReduceOp.PREMUL_SUM(2.0))
    with pytest.raises(ValueError, match="unknown reduce op 'mean'"):
        functional.all_reduce(first, mine, "mean")
    with pytest.raises(ValueError, match="no 2 equal parts"):
        functional.scatter(first, torch.ones(3), 0)
    with pytest.raises(ValueError, match="got 1 tensors: expected 2"):
        functional.all_to_all(first, [mine])
    x = mine.clone().requires_grad_()
    most = functional.all_reduce(first, x, "max")
    assert most.tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match="derivative of a reduction with MAX"):
        most.sum().backward()
    first.finalize()
    second.finalize()


def test_graphs_are_made_per_communicator(job):
    job(what_graphs_do, 2, limit=180)


def derivatives_of_asynchronous_methods(comm: torchcomms.TorchComm) -> None:
    x = inputs()[comm.get_rank()].requires_grad_()
    functions = [
        functional.all_reduce(comm, x),
        functional.broadcast(comm, x, 1),
        functional.all_gather_single(comm, x),
        functional.reduce_scatter_single(comm, x),
        functional.all_to_all_single(comm, x),
    ]
    (wanted,) = torch.autograd.grad(loss_of(functions, comm.get_rank()), x)
    methods = torch.compile(asynchronous_methods, fullgraph=True, backend="aot_eager")(comm, x)
    torch.testing.assert_close(methods, functions)
    (found,) = torch.autograd.grad(loss_of(methods, comm.get_rank()), x)
    torch.testing.assert_close(found, wanted)


def methods_in_a_graph(me: Rank) -> None:
    _methods.patch()
    comm = me.comm()
    x = torch.arange(12.0).view(4, 3) + 100 * me.rank
    for asynchronous in (False, True):
        plain = every_method(comm, x, asynchronous)
        traced = torch.compile(every_method, fullgraph=True, backend="eager")
        compiled = traced(comm, x, asynchronous)
        assert all(map(torch.equal, plain, compiled))
        assert len(plain) == len(compiled)
    derivatives_of_asynchronous_methods(comm)

    @torch.compile(fullgraph=True, backend="eager")
    def limited() -> None:
        comm.barrier(hints={"a": "b"})

    with pytest.raises(Exception, match="hints= cannot be traced"):
        limited()
    comm.finalize()


def test_methods_are_traced(job):
    job(methods_in_a_graph, 2, limit=180)


def test_the_variable_asks_for_traceable_methods(tmp_path):
    """In a process of its own: the variable is read when torchcomms is imported."""
    assert not functional.is_torch_compile_supported_and_enabled()
    program = (
        "import torchcomms, torch, torch.distributed as dist\n"
        "from torchcomms import functional\n"
        "store = dist.FileStore('store', 1)\n"
        "comm = torchcomms.new_comm('gloo', 'cpu', store=store)\n"
        "print(functional.is_torch_compile_supported_and_enabled(),\n"
        "      type(torchcomms.TorchComm.all_reduce).__name__ == 'function')\n"
    )
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "TORCHCOMMS_PATCH_FOR_COMPILE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["True"] * 2, done.stderr


def test_operators_say_the_shapes_they_give(job):
    def checked(me: Rank) -> None:
        comm = me.comm()
        key = comm._functional_key()
        x = torch.randn(4, 3)
        ops = torch.ops.torchcomms
        for op, arguments in (
            (ops.all_reduce, ("SUM",)),
            (ops.reduce, (0, "SUM")),
            (ops.broadcast, (0,)),
            (ops.all_gather, ([4],)),
            (ops.reduce_scatter, ([4], "SUM")),
            (ops.all_to_all, ([4], [4])),
            (ops.scatter, (0,)),
            (ops.gather, (0,)),
        ):
            torch.library.opcheck(op, (x, key, *arguments))
        comm.finalize()

    job(checked, 1, limit=180)
