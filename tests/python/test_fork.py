"""Forking after import: a child builds communicators of its own; one it inherited says so."""

from __future__ import annotations

import os

import pytest
import torch
import torch.multiprocessing as multiprocessing
from ranks import Rank

import torchcomms


def forked(me: Rank) -> None:
    comm = me.comm("before")
    comm.barrier()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="fork"):
                comm.all_reduce(torch.ones(1), torchcomms.ReduceOp.SUM)
            own = me.comm("child")
            tensor = torch.ones(1)
            own.all_reduce(tensor, torchcomms.ReduceOp.SUM)
            assert tensor.item() == me.size
            own.finalize()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # the child's end did not disturb the parent's
    tensor = torch.ones(1)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    assert tensor.item() == me.size
    comm.finalize()


def test_fork_with_a_live_communicator(job_over):
    job_over(forked, 2)


def square(number: int) -> int:
    return int(torch.tensor(number).pow(2))


def pools(me: Rank) -> None:
    comm = me.comm()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    comm.barrier()
    comm.finalize()


def test_a_forked_pool_beside_a_communicator(job):
    job(pools, 2)
