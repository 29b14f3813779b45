"""Functions that call the methods of TorchComm, to be compiled into one graph each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torchcomms
from torchcomms import ReduceOp


def every_method(
    comm: torchcomms.TorchComm, x: torch.Tensor, asynchronous: bool
) -> list[torch.Tensor]:
    """What each method gives; asynchronous ones are waited for when all were called."""
    rank, size = comm.get_rank(), comm.get_size()
    peer = 1 - rank
    outs = []
    works = []

    def fresh() -> torch.Tensor:
        outs.append(x.clone())
        return outs[-1]

    def call(method: Callable[..., Any], *arguments: Any) -> None:
        work = method(*arguments, asynchronous)
        if asynchronous:
            works.append(work)

    call(comm.barrier)
    call(comm.all_reduce, fresh(), torchcomms.ReduceOp.SUM)
    call(comm.all_reduce, fresh(), ReduceOp.MAX)
    call(comm.reduce, fresh(), 0, ReduceOp.SUM)
    comm.broadcast(fresh(), root=1, async_op=False)
    call(comm.all_gather, [fresh(), fresh()], x)
    whole = torch.zeros(size * x.shape[0], x.shape[1])
    call(comm.all_gather_single, whole, x)
    outs.append(whole)
    call(comm.reduce_scatter, fresh(), [x, x + 1], ReduceOp.SUM)
    half = x[:2].clone()
    call(comm.reduce_scatter_single, half, x, ReduceOp.SUM)
    outs.append(half)
    call(comm.all_to_all, [fresh(), fresh()], [x, 2 * x])
    call(comm.all_to_all_single, fresh(), x)
    comm.all_to_all_v_single(fresh(), x, [1, 3] if rank == 0 else [3, 1], [1, 3][:: 1 - 2 * rank])
    call(comm.scatter, fresh(), [x, 3 * x] if rank == 0 else [], 0)
    call(comm.gather, [fresh(), fresh()] if rank == 1 else [], x, 1)
    gathered = torch.zeros(size * x.shape[0], x.shape[1])
    call(comm.gather_single, gathered, x, 0)
    outs.append(gathered)
    if rank == 0:
        call(comm.send, x, peer)
        call(comm.recv, fresh(), peer)
    else:
        call(comm.recv, fresh(), peer)
        call(comm.send, x, peer)
    for work in works:
        work.wait()
    return outs


def asynchronous_methods(comm: torchcomms.TorchComm, x: torch.Tensor) -> list[torch.Tensor]:
    """Those whose results have derivatives; all are on their way before one is waited for."""
    reduced, root = x.clone(), x.clone()
    gathered, scattered = torch.zeros(2 * x.shape[0], x.shape[1]), torch.zeros(2, x.shape[1])
    exchanged = torch.zeros_like(x)
    works = [
        comm.all_reduce(reduced, ReduceOp.SUM, async_op=True),
        comm.broadcast(root, 1, async_op=True),
        comm.all_gather_single(gathered, x, async_op=True),
        comm.reduce_scatter_single(scattered, x, ReduceOp.SUM, async_op=True),
        comm.all_to_all_single(exchanged, x, async_op=True),
    ]
    for work in works:
        work.wait()
    return [reduced, root, gathered, scattered, exchanged]
