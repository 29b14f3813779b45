"""The simulated GPU: its NCCL by itself, its faults, and torch's own backend on it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mutants
import pytest
import sim

HERE = Path(__file__).parent
NATIVE = str(HERE / "ranks" / "native.py")
OPERATORS = str(HERE / "ranks" / "operators.py")
STOCK = str(HERE / "ranks" / "stock.py")


@pytest.fixture(scope="session")
def libraries() -> Path:
    return sim.build()


def native(case: str, ranks: int, folder: Path, libraries: Path, **extra: str) -> list[sim.Rank]:
    extra = {"SIMGPU_TEST_FOLDER": str(folder), **extra}
    return sim.run([sys.executable, NATIVE, case], ranks, extra, 60, libraries)


def succeeded(results: list[sim.Rank], but: tuple[int, ...] = ()) -> None:
    for result in results:
        if result.rank not in but and (result.status != 0 or "done" not in result.output):
            pytest.fail(f"rank {result.rank}: status {result.status}\n{result.output}")


def torch_with_cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.backends.cuda.is_built():
        pytest.skip("this torch is built without CUDA")
    return torch


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "case",
    [
        "split",
        "shrink_and_grow",
        "without_blocking",
        "abort_while_joining",
        "abort_while_others_do_not_call",
        "revoke",
        "arguments",
        "reductions",
        "windows",
        "several_ids",
        "suspend",
        "order_across_streams",
        "captured",
    ],
)
def test_native(case: str, ranks: int, tmp_path: Path, libraries: Path) -> None:
    succeeded(native(case, ranks, tmp_path, libraries))


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_faults_to_be_made_on_purpose_have_their_place(mutant: mutants.Mutant) -> None:
    assert mutants.has_its_place(mutant), f"{mutant.file} has changed: {mutant.old!r}"


def test_driver(tmp_path: Path, libraries: Path) -> None:
    results = native("driver", 1, tmp_path, libraries)
    succeeded(results)
    assert "cuMemCreate is not simulated" in results[0].output


def test_runtime_versions(tmp_path: Path, libraries: Path) -> None:
    results = native("runtime_versions", 1, tmp_path, libraries)
    succeeded(results)
    assert "cudaGraphDebugDotPrint is not simulated" in results[0].output


def test_survivors_shrink_around_a_dead_rank(tmp_path: Path, libraries: Path) -> None:
    results = native("shrink_around_a_dead_rank", 3, tmp_path, libraries)
    succeeded(results, but=(2,))
    assert results[2].status == -signal.SIGKILL


def test_fault_mismatch_is_named_and_told(tmp_path: Path, libraries: Path) -> None:
    results = native("mismatch", 2, tmp_path, libraries, SIMGPU_MISMATCH="error")
    succeeded(results)
    assert "calls AllReduce with" in results[0].output


def test_fault_asynchronous_error(tmp_path: Path, libraries: Path) -> None:
    succeeded(native("asynchronous_error", 2, tmp_path, libraries, SIMGPU_ASYNC_ERROR="1:6:1"))


def test_fault_failing_poll(tmp_path: Path, libraries: Path) -> None:
    succeeded(native("failing_poll", 2, tmp_path, libraries, SIMGPU_ASYNC_ERROR_FAILS="0:3"))


def test_fault_older_version(tmp_path: Path, libraries: Path) -> None:
    succeeded(native("older_version", 1, tmp_path, libraries, SIMGPU_NCCL_VERSION="22809"))


def test_fault_older_library(tmp_path: Path, libraries: Path) -> None:
    goal = tmp_path / "lib" / "libnccl.so.2"
    extra = sim.older((2, 28, 9), libraries / "libnccl.so.2", goal)
    succeeded(native("older_version", 1, tmp_path, libraries, **extra))


def test_fault_killed_rank(tmp_path: Path, libraries: Path) -> None:
    results = native("killed", 2, tmp_path, libraries, SIMGPU_KILL="1:1")
    succeeded(results, but=(1,))
    assert results[1].status == -signal.SIGKILL


def test_fault_rank_that_never_joins(tmp_path: Path, libraries: Path) -> None:
    succeeded(native("never_joins", 2, tmp_path, libraries, SIMGPU_NEVER_JOINS="1:0"))


def test_fault_slow_stream_changes_no_result(tmp_path: Path, libraries: Path) -> None:
    succeeded(native("order_across_streams", 2, tmp_path, libraries, SIMGPU_SLOW_STREAM="1:30"))


def test_fault_hidden_symbol(tmp_path: Path, libraries: Path) -> None:
    goal = tmp_path / "lib" / "libnccl.so.2"
    hidden = sim.hide(libraries / "libnccl.so.2", ["ncclCommGrow"], goal)
    succeeded(native("hidden_symbol", 1, tmp_path, libraries, FERROCOMM_NCCL_LIB=str(hidden)))


def test_a_symbol_that_is_not_there_cannot_be_hidden(tmp_path: Path, libraries: Path) -> None:
    with pytest.raises(ValueError, match="does not have ncclNothing"):
        sim.hide(libraries / "libnccl.so.2", ["ncclNothing"], tmp_path / "libnccl.so.2")


def test_a_fault_that_is_not_understood_ends_the_process(tmp_path: Path, libraries: Path) -> None:
    results = native("older_version", 1, tmp_path, libraries, SIMGPU_NCCL_VERSION="two")
    assert results[0].status == 2
    assert "SIMGPU_NCCL_VERSION" in results[0].output


def test_a_rank_may_be_any_program() -> None:
    command = [sys.executable, str(HERE / "sim.py"), "--ranks", "2", "/bin/sh", "-c"]
    asked = 'echo "$SIMGPU $RANK of $WORLD_SIZE"; exit "$RANK"'
    result = subprocess.run([*command, asked], capture_output=True, text=True, timeout=120)
    lines = ["[0] 1 0 of 2", "[1] 1 1 of 2", "[1] status 1"]
    assert (result.stdout.splitlines(), result.returncode) == (lines, 1)


def test_a_rank_that_does_not_end_is_killed(libraries: Path) -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    results = sim.run(command, 2, timeout=1, folder=libraries)
    assert all(result.killed for result in results)


def test_ranks_die_with_their_launcher(tmp_path: Path, libraries: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, threading\n"
        f"open(r'{tmp_path}/pid', 'w').write(str(os.getpid()))\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, str(HERE / "sim.py"), "--ranks", "1", str(script)]
    launcher = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watch = os.pidfd_open(int((tmp_path / "pid").read_text()))
    launcher.kill()
    launcher.wait()
    assert select.select([watch], [], [], 10)[0], "the rank outlived its launcher"
    os.close(watch)


def test_operators_of_torch(libraries: Path) -> None:
    torch_with_cuda()
    results = sim.run([sys.executable, OPERATORS], 1, timeout=120, folder=libraries)
    succeeded(results)
    assert "refused to launch" in results[0].output
    assert "elementwise_kernel" in results[0].output


@pytest.mark.parametrize(
    ("backend", "ranks"), [("nccl", 2), ("nccl", 4), ("nccl-legacy", 2), ("nccl-lazy", 2)]
)
def test_torch_on_its_own_backend(backend: str, ranks: int, libraries: Path) -> None:
    torch = torch_with_cuda()
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if backend != "nccl" and release < (2, 15):
        pytest.skip(f"torch {torch.__version__} may not have the backend {backend}")
    results = sim.run([sys.executable, STOCK, backend], ranks, timeout=180, folder=libraries)
    succeeded(results)


def test_nothing_is_left_in_shared_memory(tmp_path: Path, libraries: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    results = native("shrink_around_a_dead_rank", 2, tmp_path, libraries)
    assert results[1].status == -signal.SIGKILL
    assert {name for name in os.listdir("/dev/shm") if "sim" in name} <= before
