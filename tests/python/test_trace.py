"""`python -m torchcomms trace`: dumps of a job in which one rank stayed behind."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from ranks import Rank

from torchcomms import ReduceOp, __main__, _trace, hooks


def with_a_late_rank(me: Rank) -> None:
    comm = me.comm("main")
    hook = hooks.FlightRecorderHook()
    hook.register_with_comm(comm)
    comm.all_reduce(torch.ones(2, 3), ReduceOp.SUM)
    if me.rank == 0:
        comm.send(torch.ones(4), 1)
        work = comm.all_reduce(torch.ones(5), ReduceOp.MAX, async_op=True)
        hook.dump_file(me.rank)
        me.meet("dumped")
        with pytest.raises(torch.distributed.DistBackendError):
            work.wait(timedelta(milliseconds=1))
    else:
        comm.recv(torch.ones(4), 0)
        hook.dump_file(me.rank)
        me.meet("dumped")
    me.meet("over")


@pytest.fixture
def dumps(job, tmp_path: Path) -> list[Path]:
    prefix = tmp_path / "dump_"
    job(with_a_late_rank, 2, env={"TORCHCOMM_FR_DUMP_TEMP_FILE": str(prefix)})
    return [Path(f"{prefix}{rank}") for rank in range(2)]


def test_table_and_timeline(dumps: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chrome = tmp_path / "out.json"
    words = ["trace", *map(str, dumps), "--chrome", str(chrome)]
    assert __main__.main(words) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split()[:5] == ["rank", "group", "seq", "operation", "state"]
    assert sum("all_reduce" in line and "float32 6 SUM" in line for line in lines) == 2
    assert any("send" in line and line.split()[0] == "0" for line in lines)
    assert any("recv" in line and line.split()[0] == "1" for line in lines)
    late = [line for line in lines if "5 MAX" in line]
    assert len(late) == 1
    assert "completed" not in late[0]
    assert "main: collective 2 was called, but rank 1 after 1" in lines

    events: list[dict[str, Any]] = json.loads(chrome.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 5
    assert all(e["dur"] >= 0 and e["pid"] in (0, 1) for e in spans)
    assert any(e["name"].startswith("all_reduce (") for e in spans)

    assert __main__.main(["trace", str(dumps[0]), "--last", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert __main__.main(["trace", str(dumps[0]), "--group", "other"]) == 0
    assert capsys.readouterr().out == "no operations\n"

    # torch's own recorder, and ours where it is asked to, writes pickles
    pickled = tmp_path / "pickled0"
    pickled.write_bytes(pickle.dumps(json.loads(dumps[0].read_text())))
    assert __main__.main(["trace", str(pickled), "--last", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    file = tmp_path / "evil"
    file.write_bytes(pickle.dumps(print))
    assert __main__.main(["trace", str(file)]) == 2
    assert "builtins.print, which is no plain data" in capsys.readouterr().err


def test_operations_that_overlap_lie_in_lanes_of_their_own():
    def entry(start: int, end: int | None) -> dict[str, Any]:
        return {
            "process_group": ["g", ""],
            "profiling_name": "ferrocomm:all_reduce",
            "time_created_ns": start,
            "time_discovered_completed_ns": end,
            "state": "completed" if end else "started",
        }

    dump = _trace.Dump(Path("x"), 3, [entry(0, 100), entry(50, 150), entry(120, None)])
    spans = [e for e in _trace.timeline([dump])["traceEvents"] if e["ph"] == "X"]
    assert [span["tid"] for span in spans] == [1, 2, 1]
    assert spans[2]["name"] == "all_reduce (started)"
    assert spans[2]["dur"] == pytest.approx(0.03)


@pytest.mark.parametrize("content", ["not json", "[]", '{"entries": 3}'])
def test_what_is_no_dump_is_named(content, tmp_path, capsys):
    file = tmp_path / "other"
    file.write_text(content)
    assert __main__.main(["trace", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert __main__.main(["trace", str(tmp_path / "missing")]) == 2
