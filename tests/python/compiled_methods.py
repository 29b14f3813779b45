"""A function that calls the methods of TorchComm, to be compiled into one graph."""

from __future__ import annotations

import torch

import torchcomms
from torchcomms import ReduceOp


def every_method(comm: torchcomms.TorchComm, x: torch.Tensor) -> list[torch.Tensor]:
    rank, size = comm.get_rank(), comm.get_size()
    peer = 1 - rank
    outs = []

    def fresh() -> torch.Tensor:
        outs.append(x.clone())
        return outs[-1]

    comm.barrier(False)
    work = comm.all_reduce(fresh(), torchcomms.ReduceOp.SUM, async_op=True)
    work.wait()
    comm.all_reduce(fresh(), ReduceOp.MAX, False)
    comm.reduce(fresh(), 0, ReduceOp.SUM, async_op=False)
    comm.broadcast(fresh(), root=1, async_op=False)
    comm.all_gather([fresh(), fresh()], x, False)
    whole = torch.zeros(size * x.shape[0], x.shape[1])
    comm.all_gather_single(whole, x, False)
    outs.append(whole)
    comm.reduce_scatter(fresh(), [x, x + 1], ReduceOp.SUM, False)
    half = x[:2].clone()
    comm.reduce_scatter_single(half, x, ReduceOp.SUM, False)
    outs.append(half)
    comm.all_to_all([fresh(), fresh()], [x, 2 * x], False)
    comm.all_to_all_single(fresh(), x, False)
    comm.all_to_all_v_single(fresh(), x, [1, 3] if rank == 0 else [3, 1], [1, 3][:: 1 - 2 * rank])
    comm.scatter(fresh(), [x, 3 * x] if rank == 0 else [], 0, False)
    comm.gather([fresh(), fresh()] if rank == 1 else [], x, 1, False)
    comm.gather_single(whole, x, 0, False)
    if rank == 0:
        comm.send(x, peer, False)
        comm.recv(fresh(), peer, False)
    else:
        comm.recv(fresh(), peer, False)
        comm.send(x, peer, False)
    return outs
