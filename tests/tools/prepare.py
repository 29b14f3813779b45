"""Makes the environment in which Ferrocomm is built and tested, and says in words what is missing.

    python3 tests/tools/prepare.py .venv

Does nothing when the environment was made from the same requirements by the same Python. Runs on
the system's Python before anything is installed, so it must not import anything but the standard
library.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
OLDEST_PYTHON = (3, 10)
OLDEST_RUST = (1, 89)
STAMP = "ferrocomm.stamp"


def missing_python() -> list[str]:
    """What this Python lacks."""
    found = f"Python {sys.version_info.major}.{sys.version_info.minor} at {sys.executable}"
    lacks = []
    if sys.version_info < OLDEST_PYTHON:
        lacks.append(f"Python 3.10 or later: found {found}; choose one with `make PYTHON=...`")
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            lacks.append(f"the Python module {module}: {found} has none (Debian: python3-venv)")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        lacks.append(f"Python's development files: {header} is not there (Debian: python3-dev)")
    return lacks


def missing_rust() -> list[str]:
    """What cargo lacks."""
    remedy = "install Rust 1.89 or later (https://rustup.rs)"
    if shutil.which("cargo") is None:
        return [f"cargo: {remedy}"]
    answer = subprocess.run(
        ["cargo", "--version"], capture_output=True, text=True, check=False, cwd="/"
    )
    version = re.match(r"cargo (\d+)\.(\d+)", answer.stdout)
    if version is None:
        return [f"a cargo that works: `cargo --version` said {answer.stderr.strip()!r}; {remedy}"]
    if tuple(map(int, version.groups())) < OLDEST_RUST:
        return [f"a newer cargo: found {answer.stdout.strip()}; {remedy}"]
    return []


def missing_compilers() -> list[str]:
    """Which compilers and tools are not there."""
    tools = {
        compiler("CXX", "c++"): "a C++20 compiler (Debian: g++), or name one in CXX",
        compiler("CC", "cc"): "a C11 compiler (Debian: gcc), or name one in CC",
        "make": "GNU make (Debian: make)",
    }
    return [f"{t}: install {what}" for t, what in tools.items() if shutil.which(t) is None]


def compiler(variable: str, default: str) -> str:
    """The program a variable names; it may name options and a cache as well."""
    words = shlex.split(os.environ.get(variable, ""))
    return words[0] if words else default


def fingerprint() -> str:
    """What the environment depends on, in one line."""
    requirements = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    # The base, which is the same from inside an environment and from outside.
    return f"{sys.version} {sys.base_prefix} {requirements}"


def install(folder: Path) -> None:
    """Makes or completes the environment in `folder`."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"setup: making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    print(f"setup: installing {REQUIREMENTS.name} (torch is large; some minutes)", flush=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the environment is or will be")
    folder: Path = parser.parse_args().folder
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == fingerprint():
        return 0
    lacks = [*missing_python(), *missing_rust(), *missing_compilers()]
    for lack in lacks:
        print(f"setup: missing {lack}", file=sys.stderr)
    if lacks:
        return 1
    try:
        install(folder)
    except subprocess.CalledProcessError as error:
        print(f"setup: this command ended with {error.returncode}: {error.cmd}", file=sys.stderr)
        return 1
    # Last, so that an installation that was cut short is taken up again.
    stamp.write_text(fingerprint())
    print("setup: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
