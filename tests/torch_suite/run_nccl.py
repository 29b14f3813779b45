"""Runs the nccl part of torch's own tests on the simulated GPU, on torch's backend and on ours.

    python tests/torch_suite/run_nccl.py [--all] [NAME ...]

Without arguments: the tests that need no more of a GPU than the simulator has. `--all` tries every
test of the class, which is how that list was made. Prints the counts of both engines, what is
skipped and why, and the names whose outcome differs; the exit code is 0 when none is worse on ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))
import sim  # noqa: E402

ENGINES = ("stock", "ferrocomm")
RANKS = 2
LIMIT = 1500
LISTED = HERE / "nccl_tests.txt"


def names_of_all() -> list[str]:
    os.environ.update(BACKEND="nccl", WORLD_SIZE=str(RANKS))
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    return sorted(name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_"))


def listed() -> list[str]:
    lines = LISTED.read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def run(engine: str, names: list[str], folder: Path) -> tuple[dict[str, tuple[str, str]], str]:
    """Outcome and reason by name, the worst of all ranks; and what the ranks printed."""
    place = folder / engine
    for part in ("barrier", "test_dir", "init_dir"):
        (place / part).mkdir(parents=True)
    extra = {
        "SUITE_ENGINE": engine,
        "BACKEND": "nccl",
        "TEMP_DIR": str(place),
        "INIT_METHOD": f"file://{place}/init_dir/shared_init_file",
        "OUTCOMES": str(place / "outcomes"),
        "OMP_NUM_THREADS": "1",
        # An error of a test must not end the process that runs the others.
        "TORCHCOMM_ABORT_ON_ERROR": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    }
    command = [sys.executable, str(HERE / "nccl_rank.py"), *names]
    ranks = sim.run(command, RANKS, extra, timeout=LIMIT)
    output = "\n".join(f"--- rank {rank.rank}: {rank.status}\n{rank.output}" for rank in ranks)
    outcomes: dict[str, tuple[str, str]] = {}
    for rank in range(RANKS):
        found = json.loads((place / f"outcomes.{rank}").read_text())
        for name in names:
            outcome, reason = found.get(name, ("failed", "the process ended before"))
            if outcomes.get(name, ("passed", ""))[0] == "passed" or outcome == "failed":
                outcomes[name] = (outcome, reason)
    return outcomes, output


def report(engine: str, outcomes: dict[str, tuple[str, str]]) -> None:
    counts = Counter(outcome for outcome, _ in outcomes.values())
    shown = ", ".join(f"{counts[key]} {key}" for key in ("passed", "skipped", "failed"))
    print(f"{RANKS} ranks {engine:>9}: {shown}", flush=True)


def why(outcomes: dict[str, tuple[str, str]], kind: str) -> None:
    reasons = defaultdict(list)
    for name, (outcome, reason) in outcomes.items():
        if outcome == kind:
            reasons[reason].append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names)} {kind}: {reason}\n      {', '.join(names)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every test of the class")
    parser.add_argument("--keep", type=Path, help="a folder for what the ranks print")
    asked = parser.parse_args()
    names = asked.names or (names_of_all() if asked.all else listed())
    found = {}
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as folder:
        for engine in ENGINES:
            found[engine], output = run(engine, names, Path(folder))
            report(engine, found[engine])
            if asked.keep:
                asked.keep.mkdir(parents=True, exist_ok=True)
                (asked.keep / f"{engine}.txt").write_text(output)
    stock, ours = found["stock"], found["ferrocomm"]
    why(ours, "skipped")
    if asked.all:
        why(stock, "failed")
    worse = [n for n in names if ours[n][0] != stock[n][0] and ours[n][0] != "passed"]
    for name in names:
        if ours[name][0] == "passed" != stock[name][0]:
            print(f"  more: {name}: stock {stock[name][0]}: {stock[name][1]}")
    for name in worse:
        print(f"  DIFFERS: {name}: stock {stock[name][0]}, ours {ours[name]}")
    passed = sum(1 for outcome, _ in ours.values() if outcome == "passed")
    print(f"torch suite on the simulated GPU: {passed} passed, {len(worse)} failed")
    return 1 if worse or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
