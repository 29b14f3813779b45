"""The bench: its arithmetic, the form of its tables, its judgements, and a very small run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchcomms._bench import (
    _cells,
    _command,
    _figures,
    _floors,
    _native,
    _run,
    _systems,
    _tables,
    _targets,
)
from torchcomms._bench._cells import Cell
from torchcomms._bench._figures import KIB, MIB, OPERATIONS


def plan(*words: str) -> _run.Plan:
    parser = argparse.ArgumentParser()
    _command.add_arguments(parser)
    return _run.plan_of(parser.parse_args(words))


def results(*cells: Cell, **facts: Any) -> _run.Results:
    machine = {"cores": 2, "versions": {}}
    return _run.Results(plan("--quick"), machine, list(cells), **facts)


def cell(operation: str = "all_reduce", size: int = 8, ranks: int = 2, **rounds: Any) -> Cell:
    dtype = rounds.pop("dtype", "f32")
    return Cell(operation, size, dtype, ranks, {n.replace("_", "-"): t for n, t in rounds.items()})


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 8, 0.875),
        ("gather", 2, 0.5),
        ("scatter", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 2, 1.0),
        ("barrier", 4, 0.0),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(
    operation: str, ranks: int, factor: float
) -> None:
    of_algorithm, of_bus = _figures.bandwidths(OPERATIONS[operation], 4000, ranks, 2.0)
    assert of_algorithm == pytest.approx(2.0)
    assert of_bus == pytest.approx(2.0 * factor)


def test_a_time_of_zero_has_no_bandwidth() -> None:
    assert _figures.bandwidths(OPERATIONS["all_reduce"], 8, 2, 0.0) == (0.0, 0.0)


def test_traffic_of_all_reduce_is_about_three_times_its_size() -> None:
    assert OPERATIONS["all_reduce"].traffic(2) == pytest.approx(2.5)
    assert OPERATIONS["all_reduce"].traffic(1000) == pytest.approx(3.0, abs=0.01)


def test_bound_is_a_flag_and_the_traffic_at_the_speed_of_memcpy() -> None:
    machine: dict[str, Any] = {"flag_ns": 100.0, "copies": {KIB: 50.0, MIB: 10.0}, "cores": 2}
    # broadcast copies its size once: 800 bytes at the 50 bytes/ns of the next size measured
    assert _figures.bound(OPERATIONS["broadcast"], 800, 2, **machine) == pytest.approx(0.116)
    # beyond all sizes measured the largest speaks
    assert _figures.bound(OPERATIONS["broadcast"], 10 * MIB, 2, **machine) == pytest.approx(
        0.1 + MIB / 1000
    )
    # four ranks share two cores
    assert _figures.bound(OPERATIONS["broadcast"], 800, 4, **machine) == pytest.approx(0.132)
    assert _figures.bound(OPERATIONS["barrier"], 0, 2, **machine) == pytest.approx(0.1)


def test_ratio_is_the_median_of_blocks_beside_each_other() -> None:
    # drift hits both alike: the ratio of medians would be 2.5
    assert _figures.ratio([1.0, 10.0, 2.0], [2.0, 20.0, 5.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("64K", 65536), ("64 KiB", 65536), ("16MB", 16 << 20)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert _figures.parsed_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "1.5M", "8G8", "-8"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        _figures.parsed_size(text)


def test_a_divided_size_has_whole_elements_in_every_part() -> None:
    assert _figures.real_size(OPERATIONS["all_gather"], 8, 8, "f32") == 32
    assert _figures.real_size(OPERATIONS["all_gather"], 100, 8, "f32") == 96
    assert _figures.real_size(OPERATIONS["all_reduce"], 8, 8, "f32") == 8
    assert _figures.real_size(OPERATIONS["barrier"], 8, 8, "f32") == 0


def test_buffers_never_take_more_than_a_third_of_the_free_memory() -> None:
    assert _cells.fits(cell(size=MIB, ranks=4), 24 * MIB)
    assert not _cells.fits(cell(size=MIB, ranks=4), 24 * MIB - 1)


def test_default_sizes_hold_those_of_the_targets() -> None:
    for full in (False, True):
        sizes = _cells.default_sizes(full)
        assert {8, 64 * KIB, MIB, 16 * MIB, 256 * MIB} <= set(sizes)
        assert sizes == sorted(set(sizes))


def test_cells_come_once_and_large_ones_last() -> None:
    # 8 and 16 bytes are the same thing for all_gather of 4 ranks
    cells = _cells.cells_of(4, ["all_gather", "barrier", "send_recv"], [8, 16, 64], ["f32", "bf16"])
    assert [(c.operation, c.size, c.dtype) for c in cells] == [
        ("all_gather", 16, "f32"),
        ("barrier", 0, "f32"),
        ("all_gather", 64, "f32"),
    ]


def test_mpi_is_not_asked_for_bf16() -> None:
    assert "no bf16" in _cells.serves("mpich", cell(dtype="bf16"))
    assert _cells.serves("capi", cell(dtype="bf16")) == ""


def test_quick_is_two_ranks_and_options_overrule_it() -> None:
    assert plan("--quick").ranks == [2]
    chosen = plan("--quick", "--ranks", "4", "--sizes", "1K,8", "--systems", "gloo")
    assert (chosen.ranks, chosen.sizes, chosen.systems) == ([4], [8, 1024], ["gloo"])


def test_an_unknown_operation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan("--ops", "all_reduce,al_gather")
    assert "'al_gather' is not one of" in capsys.readouterr().err


def test_table_has_the_columns_of_nccl_tests() -> None:
    measured = cell(size=4096, gloo=[2.0, 1.0, 4.0])
    measured.wrong["gloo"] = 3
    lines = _tables.system_table("all_reduce", "gloo", 2, [measured]).splitlines()
    head = lines[1].lstrip("# ").split()
    assert head == ["size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "least"]
    assert lines[3].split() == ["4096", "1024", "f32", "sum", "2.00", "2.05", "2.05", "3", "1.00"]


def test_table_says_why_there_is_no_result() -> None:
    refused = cell(size=8, dtype="bf16")
    refused.notes["mpich"] = "n/a: MPI has no bf16"
    text = _tables.system_table("all_reduce", "mpich", 2, [refused])
    assert text.endswith("# 8 B bf16: n/a: MPI has no bf16")


def test_summary_compares_with_the_faster_mpi_and_with_gloo() -> None:
    measured = cell(capi=[1.0], openmpi=[3.0], mpich=[2.0], dist=[10.0], gloo=[250.0])
    (line,) = _tables.comparisons(results(measured, floors=floors()))
    assert (line.mpi, line.in_c_ratio, line.dist_ratio) == ("mpich", 2.0, 25.0)
    # a flag of 100 ns and 10 bytes copied at 50 bytes/ns
    assert line.percent == pytest.approx(10.02)


def floors() -> dict[str, Any]:
    return _floors.parsed("flag 100.0\ncopy 2 1024 50.0\ncopy 2 4096 40.0\n")


def test_floors_keep_the_better_of_two_measurements() -> None:
    other = _floors.parsed("flag 90.0\ncopy 2 1024 45.0\ncopy 2 4096 60.0\n")
    kept = _floors.better(floors(), other)
    assert kept == {"flag_ns": 90.0, "threads": 2, "copies": {1024: 50.0, 4096: 60.0}}
    assert _floors.better({"missing": "no compiler"}, other) == {"missing": "no compiler"}


def verdict(found: _run.Results, start: str) -> bool | None:
    (row,) = [row for row in _targets.rows(found) if row.target.startswith(start)]
    return row.reached


def test_a_target_that_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert {row.reached for row in _targets.rows(results())} == {None}


@pytest.mark.parametrize(("mpich", "reached"), [(2.1, True), (1.9, False)])
def test_target_against_mpi_asks_for_the_ratio_to_the_best(mpich: float, reached: bool) -> None:
    measured = cell(size=MIB, capi=[1.0], openmpi=[9.0], mpich=[mpich])
    assert verdict(results(measured), "all_reduce f32 1 MB") is reached


def test_on_one_core_no_target_is_judged() -> None:
    found = results(cell(size=MIB, capi=[1.0], mpich=[9.0]))
    found.machine["cores"] = 1
    assert {row.reached for row in _targets.rows(found)} == {None}


@pytest.mark.parametrize(
    ("flags", "reached"), [([120.0, 240.0], True), ([90.0, 240.0], False), ([], None)]
)
def test_a_call_is_held_against_the_faster_flag_beside_it(
    flags: list[float], reached: bool | None
) -> None:
    small = cell(size=8, capi=[0.2])
    small.flags_ns = flags
    assert verdict(results(small), "all_reduce f32 8 B in C: at most 2") is reached


def test_targets_against_gloo_look_at_the_worst_size() -> None:
    fast = cell(size=8, ranks=4, dist=[1.0], gloo=[9.0])
    slow = cell(size=MIB, ranks=4, dist=[2.0], gloo=[1.0])
    found = results(fast, slow)
    assert verdict(found, "4 ranks, dist.all_reduce: never slower") is False
    assert verdict(found, "4 ranks, dist.all_reduce: at least 3 x") is True
    assert verdict(found, "8 ranks, dist.all_reduce: never slower") is None


def test_the_target_of_groups_needs_all_64_ranks() -> None:
    facts = {
        "ours": [1.0],
        "gloo": [30.0],
        "torch": [0.5],
        "ours_descriptors": 0.0,
        "gloo_descriptors": 9.0,
    }
    assert verdict(results(groups=facts | {"ranks": 64}), "new_group of 64") is True
    assert verdict(results(groups=facts | {"ranks": 16}), "new_group of 64") is False


@pytest.mark.parametrize(("descriptors", "reached"), [(20, True), (21, False)])
def test_the_target_of_churn_is_missed_by_one_descriptor(descriptors: int, reached: bool) -> None:
    first = {"done": 500, "descriptors": 20, "threads": 2, "rss_kib": 1000}
    last = {"done": 2000, "descriptors": descriptors, "threads": 2, "rss_kib": 1100}
    assert verdict(results(churn={"samples": [first, last]}), "2,000 x new_group") is reached


def test_a_wrong_element_of_ours_is_counted_and_of_a_peer_is_not() -> None:
    measured = cell()
    measured.wrong |= {"dist": 2, "comm": 0, "gloo": 5}
    assert _tables.wrong_elements(results(measured)) == {"dist": 2}


def test_without_the_source_tree_the_systems_in_c_are_missing_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "lib/site/torchcomms/_bench/x.py"))
    starter = _systems.Starter(tmp_path, print, install=False)
    missing = starter.prepare(["capi", "gloo", "mpich"])
    assert set(missing) == {"capi", "mpich"}
    assert all("source tree" in why for why in missing.values())


def test_without_a_compiler_the_bench_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    starter = _systems.Starter(tmp_path, print, install=False)
    assert "no C compiler (no-such-compiler -O1)" in starter.prepare(["capi"])["capi"]
    assert "no C compiler" in _floors.machine(tmp_path)["missing"]


# A rank that joins and then says what its first argument is to every line, or nothing.
RANK = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[2])
link.sendall(b"hello 0\\n")
for line in link.makefile("r"):
    if line.strip() == "quit":
        break
    link.sendall(sys.argv[1].encode())
"""


def started(tmp_path: Path, answer: str) -> _systems.System:
    system = _systems.System("gloo", 1, tmp_path)
    system.start([[sys.executable, "-c", RANK, answer]], {})
    return system


def test_a_rank_that_ends_before_it_joins_fails_its_system(tmp_path: Path) -> None:
    system = _systems.System("gloo", 1, tmp_path)
    with pytest.raises(_systems.SystemFailed, match="one ended before"):
        system.start([[sys.executable, "-c", "raise SystemExit('no such library')"]], {})
    assert system.last_words() == "no such library"
    system.kill()


def test_a_rank_that_refuses_has_no_result_and_lives_on(tmp_path: Path) -> None:
    system = started(tmp_path, "error this library has no such thing\n")
    for _ in range(2):
        with pytest.raises(_systems.NoResult, match="no such thing"):
            system.ask("time all_reduce 8 f32 1 1", 30.0)
    system.stop()


def test_a_rank_that_does_not_answer_fails_its_system(tmp_path: Path) -> None:
    system = started(tmp_path, "")
    with pytest.raises(_systems.SystemFailed, match="did not answer in time"):
        system.ask("time all_reduce 8 f32 1 1", 0.1)
    system.kill()


def test_a_small_run_measures_checks_and_writes_everything(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    command = [sys.executable, "-m", "torchcomms", "bench", "--systems", "comm,gloo"]
    command += ["--ranks", "2", "--sizes", "8,4K", "--ops", "all_reduce,gather,broadcast"]
    command += ["--rounds", "2", "--no-extras", "--dtypes", "f32"]
    command += ["--json", str(found), "--output-md", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(found.read_text())["cells"]
    assert {(c["operation"], c["size"]) for c in cells} == {
        (operation, size)
        for operation in ("all_reduce", "gather", "broadcast")
        for size in (8, 4096)
    }
    for measured in cells:
        assert set(measured["systems"]) == {"comm", "gloo"}
        for system in measured["systems"].values():
            assert len(system["rounds_us"]) == 2
            assert min(system["rounds_us"]) > 0
            assert system["wrong"] == 0
    assert "# gather, 2 ranks, comm" in done.stdout
    assert "bench --systems comm,gloo" in page.read_text()
