"""The nccl engine on the simulated GPU, side by side with torch's own nccl on the same simulator.

What it proves and what not is in rust/simgpu/README.md. `FC_SIDE=stock pytest tests/gpu` runs the
programs on torch's own backend alone.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sim

HERE = Path(__file__).parent
NAMES = [
    name
    for file in sorted(HERE.glob("programs_*.py"))
    for name in re.findall(r"^@program\ndef (\w+)", file.read_text(), re.MULTILINE)
]
SIDE = os.environ.get("FC_SIDE", "ours")
SWITCH = {"ours": "1", "stock": "0"}


@functools.cache
def folder() -> Path:
    return sim.build()


def run(
    script: str, *words: str, ranks: int, side: str = "ours", seconds: float = 240, **extra: str
) -> list[sim.Rank]:
    command = [sys.executable, str(HERE / script), *words]
    switch = {"FC_SIDE": side, "TORCH_DISTRIBUTED_USE_TORCHCOMMS": SWITCH[side]}
    return sim.run(command, ranks, {**switch, **extra}, seconds, folder())


# Some time after a graph with its operations is gone and its group destroyed, torch's own backend
# may lock a mutex that is no more, and glibc ends the process: torch 2.15, on four ranks in three
# of about twenty runs. So nothing comes after that program there.
LAST = {"ours": (), "stock": ("graphs",)}


@functools.cache
def outcome(side: str, ranks: int) -> tuple[list[dict[str, Any]], str]:
    """What each rank found per program, and what they all printed."""
    first = [name for name in NAMES if name not in LAST[side]]
    found: list[dict[str, Any]] = [{} for _ in range(ranks)]
    text = ""
    for names in filter(None, (first, LAST[side])):
        for rank in run("programs.py", *names, ranks=ranks, side=side):
            lines = re.findall(r"^RESULT (\w+) (.*)$", rank.output, re.MULTILINE)
            found[rank.rank] |= {name: json.loads(result) for name, result in lines}
            text += f"--- rank {rank.rank}, status {rank.status}\n{rank.output}\n"
    return found, text


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, ranks: int) -> None:
    found, text = outcome(SIDE, ranks)
    assert all(name in rank for rank in found), text[-8000:]
    if SIDE == "stock":
        return
    theirs, text = outcome("stock", ranks)
    assert all(name in rank for rank in theirs), text[-8000:]
    for rank in range(ranks):
        assert found[rank][name] == theirs[rank][name]


ours_alone = pytest.mark.skipif(SIDE == "stock", reason="about our engine alone")


@functools.cache
def together(script: str, *names: str, ranks: int = 2) -> list[sim.Rank]:
    """Programs of our engine alone, one after the other, since starting ranks takes longest."""
    with tempfile.TemporaryDirectory() as shared:
        return run(script, *names, ranks=ranks, FC_FOLDER=shared)


def ended_well(ended: list[sim.Rank], name: str) -> None:
    for rank in ended:
        assert f"DONE {name}\n" in rank.output, rank.output


@ours_alone
def test_a_rank_that_stays_away_fails_the_operation_and_names_it() -> None:
    late = run("failing.py", "time_out", ranks=2)[0]
    assert "time-out: the operation did not end on the device in time" in late.output
    assert "operation all_reduce, sequence 2" in late.output
    assert "THE HOOK" in late.output, late.output
    assert "STILL HERE" in late.output, late.output


@ours_alone
def test_a_time_out_ends_the_process_with_its_reason_where_it_shall(tmp_path: Path) -> None:
    dump = {"TORCHCOMM_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"}
    ended = run("failing.py", "time_out", ranks=2, TORCHCOMM_ABORT_ON_ERROR="1", **dump)[0]
    assert ended.status == -6, ended.output
    assert "ferrocomm: the process ends: time-out" in ended.output
    assert "THE HOOK" in ended.output, ended.output
    entries = json.loads((tmp_path / "rank_0").read_text())["entries"]
    assert [e["state"] for e in entries][-1] != "completed"


@ours_alone
def test_a_killed_rank_fails_the_operation_of_the_others() -> None:
    ended = run("failing.py", "killed", ranks=2)
    assert ended[1].status == -9
    assert "FAILED" in ended[0].output, ended[0].output
    assert "STILL HERE" in ended[0].output, ended[0].output


@ours_alone
def test_an_asynchronous_error_fails_the_communicator_with_nccls_words() -> None:
    ended = run("failing.py", "asynchronous_error", ranks=2, SIMGPU_ASYNC_ERROR="0:6:2")
    assert "NCCL error 6" in ended[0].output, ended[0].output
    assert "STILL HERE" in ended[0].output, ended[0].output


@ours_alone
def test_a_rank_that_never_joins_is_named() -> None:
    ended = run("failing.py", "never_joins", ranks=2)
    assert "not all ranks came" in ended[0].output, ended[0].output
    assert "peer 1" in ended[0].output


@ours_alone
def test_abort_wakes_waiters() -> None:
    ended = run("failing.py", "aborted", ranks=2)
    assert "aborted: the communicator was aborted" in ended[0].output, ended[0].output
    assert "STILL HERE" in ended[0].output, ended[0].output


@ours_alone
def test_a_revocation_that_does_not_end_holds_nobody_up() -> None:
    for rank in run("failing.py", "slow_revoke", ranks=2, SIMGPU_SLOW_REVOKE="0:6000"):
        assert "DONE slow_revoke" in rank.output, rank.output


UNHARMED = (
    # What cannot be served is refused by name, and leaves the communicator usable.
    "refused",
    # Hints of a split are the part's.
    "wished",
    # Calls that do not block are polled, and splits keep the order of their lists.
    "polled",
    # What a communicator holds is given up and kept as it says.
    "suspended",
    "suspended_at_the_end",
    "registered",
    "published",
)


@ours_alone
@pytest.mark.parametrize("program", UNHARMED)
def test_nothing_is_left_behind(program: str) -> None:
    ended_well(together("failing.py", *UNHARMED), program)


@ours_alone
def test_an_older_nccl_says_what_it_lacks(tmp_path: Path) -> None:
    old = sim.hide(folder() / "libnccl.so.2", ["ncclCommSplit"], tmp_path / "libnccl.so.2")
    ended = run("failing.py", "no_split", ranks=2, FERROCOMM_NCCL_LIB=str(old))
    for rank in ended:
        assert "ncclCommSplit" in rank.output, rank.output
        assert "STILL HERE" in rank.output, rank.output


WINDOWS = ("apart", "through_torch_distributed", "unfit", "kept", "late")


@ours_alone
@pytest.mark.parametrize("program", WINDOWS)
def test_windows_of_two(program: str) -> None:
    ended_well(together("window_ranks.py", *WINDOWS), program)


@ours_alone
def test_windows_of_three() -> None:
    ended_well(together("window_ranks.py", "everything", ranks=3), "everything")


ELASTIC = ("sizes_and_orders", "refusals", "lost_on_the_way", "rounds")


@ours_alone
@pytest.mark.parametrize("program", ELASTIC)
def test_members_change(program: str) -> None:
    # Its one process starts the ranks itself.
    ended_well(together("elastic.py", *ELASTIC, ranks=1), program)


@ours_alone
def test_members_change_where_calls_do_not_block_and_where_nccl_is_older(tmp_path: Path) -> None:
    old = sim.older((2, 26, 5), folder() / "libnccl.so.2", tmp_path / "libnccl.so.2")
    names = ("sizes_and_orders", "refusals")
    for extra in ({"ELASTIC_BLOCKING": "false"}, old):
        ended = run("elastic.py", *names, ranks=1, **extra)
        for name in names:
            ended_well(ended, name)


@ours_alone
def test_members_change_through_torch_distributed() -> None:
    ended_well(run("elastic.py", "through_torch", ranks=2), "through_torch")


@ours_alone
def test_an_nccl_that_cannot_be_suspended_says_so(tmp_path: Path) -> None:
    old = sim.older((2, 29, 2), folder() / "libnccl.so.2", tmp_path / "libnccl.so.2")
    for rank in run("failing.py", "no_suspension", ranks=2, **old):
        for name in ("ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"):
            words = rf"FAILED NotImplementedError .*{name} needs NCCL >= 2\.29\.7, found 2\.29\.2"
            assert re.search(words, rank.output), rank.output
        assert "STILL HERE" in rank.output, rank.output


def test_without_a_gpu_one_error_says_what_is_missing() -> None:
    words = (
        "import torch.distributed as dist; dist.config.use_torchcomms = True;"
        "dist.init_process_group('nccl', rank=0, world_size=1, store=dist.HashStore())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ended = subprocess.run(
        [sys.executable, "-c", words], env=clean, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("NotImplementedError: not supported: no NVIDIA driver is installed")
    assert "gloo serves CPU tensors here" in last
