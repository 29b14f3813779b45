"""Builds the package for another torch and runs a job of two ranks on it.

    python tests/torch_versions/run.py VERSION ... [--keep]

Each version gets an environment of its own in build/torch-versions, with torch's wheel and none of
its dependencies: Python packages and CUDA's libraries are those of the environment that runs this.
The engine in Rust is not torch's business and is built once, in the same folder. An environment
(1.1 GB) is removed after its run unless `--keep` is given. Ends with a table version x check.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
PLACE = ROOT / "build" / "torch-versions"
CHECKS = ("all_reduce", "all_gather", "broadcast", "send_recv", "ddp")
# What torch 2.15 loads no more, so that this environment does not have it.
ALSO = ("nvidia-curand",)
# Of a hang; the job takes seconds.
LIMIT = 300


@dataclass
class Outcome:
    """What came of one version."""

    version: str
    stage: str = "install"
    passed: list[str] = field(default_factory=list)
    output: str = ""

    def row(self) -> str:
        cells = ["yes" if check in self.passed else "NO" for check in CHECKS]
        return f"{self.version:<10} {self.stage:<10} " + " ".join(f"{cell:<10}" for cell in cells)


def pip(python: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pip of this environment, at work on another one."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    return subprocess.run(
        [*command, "--disable-pip-version-check", "--no-deps", *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(version: str) -> Path:
    """Python of an environment in which this torch comes before what this environment has."""
    folder = PLACE / version
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        inside = sysconfig.get_path("platlib", vars={"base": str(folder), "platbase": str(folder)})
        # Found after the environment's own packages, and its .pth files are not read.
        shared = sysconfig.get_path("platlib")
        (Path(inside) / "shared.pth").write_text(f"{shared}\n")
        done = pip(python, "--no-cache-dir", "--no-compile", f"torch=={version}", *ALSO)
        if done.returncode != 0:
            shutil.rmtree(folder)
            raise SystemExit(f"torch {version} could not be installed:\n{done.stderr[-3000:]}")
    return python


def build(version: str, python: Path) -> subprocess.CompletedProcess[str]:
    settings = {
        "build-dir": str(PLACE / f"shim-{version}"),
        "cmake.define.CARGO_TARGET_DIR": str(PLACE / "cargo"),
        # All files as one: torch's headers are read once, which is most of the work.
        "cmake.define.CMAKE_UNITY_BUILD": "ON",
        "cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE": "0",
        "cmake.define.CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
    }
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    return pip(python, "--no-build-isolation", "--force-reinstall", *options, str(ROOT))


def launch(python: Path) -> subprocess.CompletedProcess[str]:
    variables = {
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*command, str(HERE / "job.py")],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def attempt(version: str) -> Outcome:
    outcome = Outcome(version)
    python = prepare(version)
    done = build(version, python)
    outcome.stage, outcome.output = "build", done.stdout + done.stderr
    if done.returncode != 0:
        return outcome
    done = launch(python)
    outcome.output = done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("CHECK ")]
    outcome.passed = [name for _, name, _ in lines]
    outcome.stage = "all" if done.returncode == 0 else "run"
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    asked = parser.parse_args()
    outcomes = []
    for version in asked.versions:
        outcomes.append(attempt(version))
        if outcomes[-1].stage != "all":
            print(f"torch {version}:\n{outcomes[-1].output[-6000:]}", file=sys.stderr)
        if not asked.keep:
            shutil.rmtree(PLACE / version)
    print("torch      came to    " + " ".join(f"{check:<10}" for check in CHECKS))
    for outcome in outcomes:
        print(outcome.row())
    failed = sum(outcome.stage != "all" for outcome in outcomes)
    print(f"torch versions: {len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
