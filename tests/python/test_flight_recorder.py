"""Dumps of a job in which a rank is missing, before torch's own analyser; and direct and c10d calls
mixed under torch's recorder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

from torchcomms import ReduceOp
from torchcomms.hooks import FlightRecorderHook

MISSING = 2


def one_is_missing(me: Rank, folder: str) -> None:
    os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
    comm = me.comm(timeout=1.0)
    hook = FlightRecorderHook(100, isolated=True)
    hook.register_with_comm(comm)
    for _ in range(3):
        comm.all_reduce(torch.ones(8), ReduceOp.SUM)
    # the analyser finds nothing wrong with rooted ones, whose ranks differ
    own, parts = torch.ones(4), [torch.ones(4) for _ in range(me.size)] if me.rank == 1 else []
    comm.broadcast(own, 0)
    comm.reduce(own, 1, ReduceOp.SUM)
    comm.gather(parts, own, 1)
    comm.scatter(own, parts, 1)
    comm.barrier()
    if me.rank != MISSING:
        with pytest.raises(dist.DistBackendError):
            comm.all_gather_single(torch.empty(3 * 2), torch.ones(2))
    hook.dump_file(me.rank, format="pickle")
    me.meet("dumped")
    comm.abort()


def test_torchs_analyser_names_the_rank_that_is_missing(job, tmp_path: Path, capsys) -> None:
    pytest.importorskip("tabulate", reason="torch's analyser wants it")
    # what `python -m torch.distributed.flight_recorder.fr_trace` runs
    from torch.distributed.flight_recorder import fr_trace

    folder = tmp_path / "dumps"
    folder.mkdir()
    job(one_is_missing, 3, str(folder))
    fr_trace.main([str(folder), "-p", "rank_"])
    ran = capsys.readouterr()
    said = ran.out + ran.err
    assert "Not all ranks joining collective, sequence number: 9" in said, said
    assert f"missing ranks: {{{MISSING}}}" in said, said
    assert "has errors" not in said, said


def mixed(me: Rank) -> None:
    """Direct and c10d collectives of one process in any order, under torch's own recorder."""
    me.world(timeout=30)
    world = dist.distributed_c10d._get_default_group()
    shared = world._get_backend(torch.device("cpu")).get_comm()
    own = me.comm("direct")
    pending: list[object] = []
    x, y = torch.zeros(64), torch.zeros(64)
    for step in range(40):
        turn = step % 5
        given = torch.full((64,), float(me.rank + step))
        if turn == 0:
            own.all_reduce(given, ReduceOp.SUM)
        elif turn == 1:
            dist.all_reduce(given)
        elif turn == 2:
            shared.all_reduce(given, ReduceOp.SUM)
        elif turn == 3:
            pending += [
                dist.all_reduce(x, async_op=True),
                own.all_reduce(y, ReduceOp.SUM, async_op=True),
            ]
            continue
        else:
            part = shared.split([1, 0], f"part{step}")
            assert part is not None
            part.all_reduce(given, ReduceOp.SUM)
            part.finalize()
            dist.barrier()
        assert given[0].item() == 2 * step + 1, step
        for work in pending:
            work.wait()
        pending.clear()
    dist.all_gather_object([None, None], me.rank)
    dist.destroy_process_group()
    own.finalize()


def test_direct_and_c10d_collectives_mix(job):
    job(mixed, 2, env={"TORCH_FR_BUFFER_SIZE": "200", "TORCH_NCCL_TRACE_BUFFER_SIZE": "200"})
