"""FERROCOMM_TCP_STREAMS: long messages go on several connections, and arrive as they were."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
from ranks import Rank

import torchcomms

MEBI = 1 << 20


def sockets() -> int:
    """Sockets of this process."""
    folder = "/proc/self/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:  # the folder's own
            continue
    return sum(link.startswith("socket:") for link in links)


def numbers(rank: int, count: int) -> torch.Tensor:
    return (torch.arange(count, dtype=torch.int64) * (rank + 3)) % 1009


def long_messages(me: Rank) -> int:
    comm = me.comm(timeout=40)
    peer = 1 - me.rank
    comm.all_reduce(torch.ones(1000), torchcomms.ReduceOp.SUM)
    before = sockets()
    count = MEBI + 5
    got = torch.zeros(count, dtype=torch.int64)
    for round in range(2):
        sent = numbers(me.rank + round, count)
        batch = comm.batch_op_create()
        batch.send(sent, peer)
        batch.recv(got, peer)
        batch.issue(async_op=False)
        assert torch.equal(got, numbers(peer + round, count))
        # between them one that is short, and must not be late
        small = torch.full((10,), me.rank + round)
        comm.all_reduce(small, torchcomms.ReduceOp.SUM)
        assert small.tolist() == [2 * round + 1] * 10
        total = numbers(me.rank, count)
        comm.all_reduce(total, torchcomms.ReduceOp.SUM)
        assert torch.equal(total, numbers(0, count) + numbers(1, count))
    opened = sockets() - before
    comm.finalize()
    return opened


# Each side opens those that it sends on, and takes in those of the other as they are used.
@pytest.mark.parametrize(("streams", "opened"), [("auto", {0}), ("3", {2, 3, 4})])
def test_long_messages_arrive_on_as_many_connections_as_were_asked_for(job, streams, opened):
    env = {"FERROCOMM_HOST_TRANSPORT": "tcp", "FERROCOMM_TCP_STREAMS": streams}
    assert set(job(long_messages, 2, env=env)) <= opened


def peer_dies(me: Rank) -> None:
    comm = me.comm(timeout=40)
    tensor = torch.ones(16 * MEBI, dtype=torch.int64)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    if me.rank == 1:
        work = comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=True)
        del work
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"peer 1|rank 1"):
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, timeout=timedelta(seconds=20))
    comm.abort()


def test_a_peer_that_dies_between_chunks_is_named(job):
    env = {"FERROCOMM_HOST_TRANSPORT": "tcp", "FERROCOMM_TCP_STREAMS": "3"}
    job(peer_dies, 2, env=env, dies=[1])


def wrong(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"FERROCOMM_TCP_STREAMS.*got many"):
        me.comm()


def test_a_word_that_means_nothing_is_refused(job):
    job(wrong, 1, env={"FERROCOMM_TCP_STREAMS": "many"})
