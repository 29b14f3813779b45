"""`python -m torchcomms selftest` over each transport, with more ranks, and on the simulated GPU.

    python tests/tools/selftests.py

`make test` runs it once, on two ranks in shared memory; this is the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import sim  # noqa: E402  (after its folder is on the path)

LIMIT = 180


def environments() -> dict[str, tuple[list[str], dict[str, str]]]:
    """What to run: options and variables, by name."""
    folder = sim.build()
    gpu = sim.environment(0, 2, 1, folder, {})
    return {
        "tcp": ([], {"FERROCOMM_HOST_TRANSPORT": "tcp"}),
        "alone": (["--ranks", "1"], {}),
        "four ranks": (["--ranks", "4"], {}),
        "simulated GPU": (["--device", "cuda"], gpu),
    }


def main() -> int:
    """Returns the exit code."""
    failed = 0
    runs = environments()
    for name, (options, variables) in runs.items():
        command = [sys.executable, "-m", "torchcomms", "selftest", "--limit", str(LIMIT), *options]
        done = subprocess.run(
            command,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=LIMIT + 60,
            check=False,
        )
        failed += done.returncode != 0
        print(f"{name:<16}{(done.stdout.splitlines() or [''])[-1]}")
        if done.returncode != 0:
            print(done.stdout, done.stderr)
    print(f"selftests: {len(runs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
