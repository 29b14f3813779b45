"""The self-test of communicators whose members change.

Must not know processes or what is printed.
"""

from __future__ import annotations

import torch

from torchcomms import ReduceOp, TorchComm, objcol
from torchcomms._selftest._wrong import Wrong


def members(comm: TorchComm, elastic: TorchComm) -> None:
    """All ranks, all in the other order, one alone, and all again.

    Args:
        comm: on which the ranks tell one another how they are reached.
        elastic: without members.
    """
    everybody = list(range(comm.get_size()))
    orders = [everybody, everybody[::-1], everybody[:1], everybody]
    for uuid, order in enumerate(orders, start=1):
        handles: list[str | None] = [None] * len(everybody)
        objcol.all_gather_object(comm, handles, elastic.get_init_handle())
        if comm.get_rank() in order:
            elastic.reconfigure(uuid, [str(handles[rank]) for rank in order]).wait()
            _works(elastic, order.index(comm.get_rank()), len(order))
        comm.barrier()
    elastic.finalize()


def _works(elastic: TorchComm, rank: int, size: int) -> None:
    found = (elastic.get_rank(), elastic.get_size())
    if found != (rank, size):
        raise Wrong(f"rank and size are {found}, expected {(rank, size)}")
    tensor = torch.full((64,), float(1 << rank)).to(elastic.get_device())
    elastic.all_reduce(tensor, ReduceOp.SUM)
    if tensor.cpu().tolist() != [float((1 << size) - 1)] * 64:
        raise Wrong(f"the sum of {size} members is {tensor[0].item()}")
