"""Runs torch's own tests of its distributed package on stock gloo and on Ferrocomm, and compares.

    python tests/torch_suite/run.py [--ranks 2 3] [--quick] [-k EXPRESSION] [--keep FOLDER]

Prints the counts by outcome of both engines and the names whose outcome differs. The exit code is 0
when nothing differs but for more passes on Ferrocomm. The tests are those of the installed torch
(torch.testing._internal.distributed.distributed_test); none is copied here. `--quick` runs a chosen
few at 2 ranks, for `make test`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINES = ("stock", "ferrocomm")
# For one engine at one number of ranks; of a hang, not of speed.
LIMIT = 3600
QUICK_LIMIT = 300
# Each takes well under a second and a part of torch that the others do not.
QUICK = (
    "test_all_gather_coalesced_complex",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_to_all_single_unequal_split",
    "test_gather_full_group",
    "test_monitored_barrier_gloo",
    "test_new_subgroups_by_enumeration",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_ddp_logging_data_cpu",
)


@dataclass(frozen=True)
class Outcomes:
    """What each test came to on one engine at one number of ranks."""

    by_name: dict[str, str]
    seconds: float
    log: str

    def counts(self) -> str:
        found = Counter(self.by_name.values())
        return ", ".join(f"{found[key]} {key}" for key in ("passed", "skipped", "failed"))


def environment(engine: str, ranks: int, scratch: Path) -> dict[str, str]:
    """What torch's tests read when they are imported."""
    for name in ("barrier", "test_dir", "init_dir"):
        (scratch / name).mkdir(parents=True)
    # torch's own variable would decide before the module here does.
    kept = {k: v for k, v in os.environ.items() if k != "TORCH_DISTRIBUTED_USE_TORCHCOMMS"}
    return kept | {
        "SUITE_ENGINE": engine,
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": str(scratch),
        "INIT_METHOD": f"file://{scratch}/init_dir/shared_init_file",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
    }


def outcome_of(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def run(engine: str, ranks: int, chosen: str, folder: Path, limit: int) -> Outcomes:
    """All tests (or those that `chosen` selects) on one engine, one after the other."""
    place = folder / f"{engine}{ranks}"
    place.mkdir()
    report = place / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += ["--rootdir", str(HERE), "-c", os.devnull, "--junitxml", str(report)]
    command += [str(HERE / "distributed_cases.py"), *(["-k", chosen] if chosen else [])]
    start = time.monotonic()
    log = place / "log.txt"
    with log.open("wb") as output:
        subprocess.run(
            command,
            env=environment(engine, ranks, place / "scratch"),
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
    if not report.exists():
        raise SystemExit(f"{engine} at {ranks} ranks ran nothing:\n{log.read_text()[-3000:]}")
    cases = ET.parse(report).getroot().findall(".//testcase")
    by_name = {str(case.get("name")): outcome_of(case) for case in cases}
    return Outcomes(by_name, time.monotonic() - start, log.read_text(errors="replace"))


def differences(stock: dict[str, str], ours: dict[str, str]) -> tuple[list[str], list[str]]:
    """Names that differ, each with both outcomes: those that are worse with us, and more passes."""
    worse, better = [], []
    for name in sorted(stock.keys() | ours.keys()):
        theirs, mine = stock.get(name, "not run"), ours.get(name, "not run")
        if theirs != mine:
            (better if mine == "passed" else worse).append(f"{name}: stock {theirs}, ours {mine}")
    return worse, better


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--quick", action="store_true", help="a chosen few at 2 ranks")
    parser.add_argument("-k", dest="chosen", default="", help="as pytest's -k")
    parser.add_argument("--keep", type=Path, help="where reports and logs stay")
    asked = parser.parse_args()
    if asked.quick:
        asked.ranks, asked.chosen = [2], " or ".join(QUICK)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for ranks in asked.ranks:
            found = {}
            for engine in ENGINES:
                limit = QUICK_LIMIT if asked.quick else LIMIT
                found[engine] = run(engine, ranks, asked.chosen, folder, limit)
                outcomes = found[engine]
                print(
                    f"{ranks} ranks {engine:>9}: {outcomes.counts()}, {outcomes.seconds:.0f} s",
                    flush=True,
                )
            stock, ours = (found[engine].by_name for engine in ENGINES)
            worse, better = differences(stock, ours)
            for line in better:
                print(f"  more: {line}")
            for line in worse:
                print(f"  DIFFERS: {line}")
            if worse:
                print(found["ferrocomm"].log[-12000:], file=sys.stderr)
            if asked.quick and "skipped" in stock.values():
                print("  a test of the quick few does not run here", file=sys.stderr)
                failed += 1
            passed += sum(1 for outcome in ours.values() if outcome == "passed")
            failed += len(worse)
    # What stock itself cannot do counts as no failure of ours.
    print(f"torch suite: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
