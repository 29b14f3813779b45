"""engine_info, the command line and the flight recorder tell the truth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fresh import run_fresh
from ranks import Rank
from torch.distributed import config

import torchcomms
from torchcomms import _info
from torchcomms.hooks import FlightRecorderHook

SUM = torchcomms.ReduceOp.SUM


def groups(me: Rank) -> str:
    me.world()
    config.use_torchcomms = False
    stock = dist.new_group()
    dist.all_reduce(torch.ones(4))
    facts = torchcomms.engine_info()
    served = {g["group"]: g for g in facts["groups"] if g["device"] == "cpu"}
    ours = served[dist.group.WORLD.group_name]
    theirs = served[stock.group_name]
    assert ours["served_by"] == "ferrocomm"
    assert ours["communicator"]["operations"]["all_reduce"] == {"count": 1, "bytes": 16}
    assert ours["communicator"]["transport"] == os.environ["FERROCOMM_HOST_TRANSPORT"]
    assert theirs["served_by"] == "torch"
    assert theirs["backend"] == "ProcessGroupGloo"
    assert [c["name"] for c in facts["communicators"]] == [ours["communicator"]["name"]]
    text = _info.readable(facts)
    dist.destroy_process_group()
    assert torchcomms.engine_info()["groups"] == []
    return text


def test_which_engine_serves_which_group(job_over):
    for text in job_over(groups, 2):
        assert "ferrocomm (gloo)" in text
        assert "torch (ProcessGroupGloo)" in text


def test_command_line():
    done = run_fresh(
        "import runpy, sys; sys.argv[1:] = ['info', '--json'];"
        "runpy.run_module('torchcomms', run_name='__main__')"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["switch"] == {"torch_found_torchcomms": True, "use_torchcomms": False}
    backends = {b["name"]: b for b in facts["backends"]}
    assert backends["gloo"]["usable"]
    nccl = backends["nccl"]
    if not torch.cuda.is_available():
        assert not nccl["usable"]
        assert "no NVIDIA driver is installed" in nccl["reason"]
    assert nccl["findings"]["nccl_path"].endswith("libnccl.so.2")
    assert nccl["findings"]["nccl_version"].startswith("2.")
    assert "not supported" in backends["ncclx"]["reason"]
    assert set(facts["transports"]) >= {"shm", "tcp"}
    text = _info.readable(facts)
    for word in ("ferrocomm", "gloo      usable", "ncclx", "running 2.", "C ABI"):
        assert word in text


def recorded(me: Rank, folder: str) -> None:
    comm, other = me.comm("seen"), me.comm("other")
    hook = FlightRecorderHook(max_entries=100)
    assert not hook.is_enabled()
    assert hook.size() == 0
    hook.register_with_comm(comm)
    isolated = FlightRecorderHook(max_entries=100, isolated=True)
    isolated.register_with_comm(comm)
    hook.reset()
    assert hook.is_enabled()
    assert hook.size() == 0
    comm.all_reduce(torch.ones(6), SUM)
    other.barrier()
    comm.broadcast(torch.ones(2, dtype=torch.int64), 1)
    assert hook.size() == 3
    assert isolated.size() == 2
    dump = json.loads(isolated.dump_json())
    assert set(dump["pg_config"]) == {"seen"}
    first, second = dump["entries"]
    assert first["profiling_name"].endswith("all_reduce")
    assert first["input_sizes"] == [[6]]
    assert first["state"] == "completed"
    assert second["collective_seq_id"] == first["collective_seq_id"] + 1
    # a limit shows the newest; none at all is legal
    newest = FlightRecorderHook(max_entries=1)
    newest.register_with_comm(comm)
    assert json.loads(newest.dump_json())["entries"][0]["profiling_name"].endswith("broadcast")
    none = FlightRecorderHook(max_entries=0)
    none.register_with_comm(comm)
    assert none.size() == 0
    # an isolated hook forgets for itself alone
    isolated.reset()
    assert (isolated.size(), hook.size()) == (0, 3)
    comm.barrier()
    assert (isolated.size(), hook.size()) == (1, 4)
    os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] = f"{folder}/dumps/trace_"
    path = hook.dump_file(me.rank)
    assert path == f"{folder}/dumps/trace_{me.rank}"
    assert len(json.loads(Path(path).read_text())["entries"]) == 4
    # what is not over yet
    work = comm.recv(torch.zeros(1), 1 - me.rank, async_op=True)
    active = json.loads(hook.dump_json(include_completed=False))["entries"]
    assert [e["state"] for e in active] in (["scheduled"], ["started"])
    me.meet("both have looked")
    comm.send(torch.ones(1), 1 - me.rank)
    work.wait()
    hook.unregister()
    assert not hook.is_enabled()
    assert hook.size() == 0
    comm.finalize()
    other.finalize()


def test_flight_recorder(job, tmp_path):
    job(recorded, 2, str(tmp_path))


def analysed(me: Rank, folder: str) -> None:
    me.world()
    os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
    hook = FlightRecorderHook(100)
    hook.register_with_comm(dist.group.WORLD._get_backend(torch.device("cpu")).get_comm())
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    hook.dump_file(me.rank)
    dist.destroy_process_group()


def test_torchs_analyser_reads_the_dump(job, tmp_path):
    pytest.importorskip("tabulate", reason="torch's analyser wants it")
    folder = tmp_path / "dumps"
    folder.mkdir()
    job(analysed, 2, str(folder))
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    dumps = {
        f"rank_{rank}": json.loads((folder / f"rank_{rank}").read_text())
        | {"rank": rank, "host_name": f"rank_{rank}"}
        for rank in range(2)
    }
    arguments = JobConfig().parse_args([str(folder)])
    built = build_db(dumps, arguments, "2.10")
    assert len(built.collectives) == 3


@pytest.mark.parametrize(("entries", "error"), [(-1, ValueError), ("3", TypeError)])
def test_flight_recorder_arguments(entries, error):
    with pytest.raises(error, match="max_entries"):
        FlightRecorderHook(max_entries=entries)
