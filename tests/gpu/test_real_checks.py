"""The script for a machine with a real GPU, tried on the simulated one and without any."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "real" / "run.py"
sys.path.insert(0, str(HERE / "real"))

import header  # noqa: E402

FEW = ["--only", "symbols", "--only", "nccl.h", "--only", "one rank"]


def run(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**clean, **extra},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def simulated(results: Path, **extra: str) -> tuple[int, dict[str, Any], str]:
    done = run("--simulated", *FEW, "--json", str(results), **extra)
    assert results.exists(), done.stderr
    return done.returncode, json.loads(results.read_text()), done.stdout


def verdicts(results: dict[str, Any]) -> dict[str, str]:
    return {row["check"]: row["verdict"] for row in results["rows"]}


def test_checks_pass_on_the_simulated_gpu_and_say_where_they_were(tmp_path: Path) -> None:
    status, results, printed = simulated(tmp_path / "results.json")
    assert status == 0, printed
    assert set(verdicts(results).values()) == {"passed"}
    assert results["simulated"] is True
    assert "SIMULATED GPU" in printed.splitlines()[0]


def test_a_check_that_fails_stops_no_other(tmp_path: Path) -> None:
    status, results, printed = simulated(tmp_path / "results.json", SIMGPU_KILL="0:3")
    assert status == 1, printed
    found = verdicts(results)
    assert found.pop("one rank: operations and dtypes") == "failed"
    assert set(found.values()) == {"passed"}


def test_without_a_gpu_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        done = run("--json", str(tmp_path / "results.json"))
    else:
        pytest.skip("there is an NVIDIA driver")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "test-gpu: nothing can be checked on a GPU here: "
        "no NVIDIA driver is installed (libcuda.so.1).\n"
    )


def test_numbers_that_differ_from_the_header_are_named() -> None:
    bindings = header.BINDINGS.read_text()
    structs = {one.name: one for one in header.structs(bindings)}
    assert structs["ncclConfig_t"].size == 120
    assert structs["ncclConfig_t"].offsets["netName"] == 32
    text = "ncclSum ncclProd"
    comparison = header.Comparison(bindings, text)
    assert comparison.differences("ncclSum = 0\nncclProd = 1\n") == []
    wrong = comparison.differences("ncclSum = 7\n")
    assert wrong == ["ncclSum is 7, bindings have 0", "ncclProd is None, bindings have 1"]
