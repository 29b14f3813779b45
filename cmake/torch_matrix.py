"""Compiles the shim against the headers of each supported torch, without building or running it.

The headers come from torch's wheels: downloaded without their dependencies into build/torch-wheels,
unpacked without the libraries. The torch that is installed is left to the build; `--all` takes
it, too.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

VERSIONS = ["2.14.1", "2.15.0"]
ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "torch-wheels"
# A compiler takes up to 2 GB.
AT_ONCE = min(4, os.cpu_count() or 1)
FLAGS = ["-std=c++20", "-O0", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]


def installed_headers(version: str) -> Path | None:
    """Headers of the installed torch, if it is this version."""
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("torch")
    if installed.split("+")[0] != version or spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "include"


def wheel_headers(version: str) -> Path:
    """Headers out of the wheel, downloaded and unpacked once."""
    folder = CACHE / version
    headers = folder / "torch" / "include"
    if (folder / "complete").exists():
        return headers
    print(f"torch {version}: downloading its wheel", flush=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(CACHE), f"torch=={version}"], check=True)
    (wheel,) = CACHE.glob(f"torch-{version}[-+]*.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.startswith("torch/include/")]
        archive.extractall(folder, wanted)
    wheel.unlink()
    (folder / "complete").touch()
    return headers


def bridge_headers() -> Path:
    """The headers that cxx generates, as cargo leaves them."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = ["cargo", "build", "--locked", "--quiet", "-p", "ferrocomm-torch-bridge"]
    subprocess.run([*command, "--target-dir", str(target)], check=True, cwd=ROOT)
    return target / "cxxbridge"


def compile_flags(torch_headers: Path, bridge: Path) -> list[str]:
    system = [torch_headers, torch_headers / "torch/csrc/api/include", bridge]
    system.append(Path(sysconfig.get_paths()["include"]))
    own = [ROOT / "cpp", ROOT / "include", ROOT / "rust/torch-bridge/include"]
    flags = list(FLAGS)
    for folder in system:
        flags += ["-isystem", str(folder)]
    for folder in own:
        flags += ["-I", str(folder)]
    return flags


def precompile(compiler: str, flags: list[str], version: str) -> Path:
    """Torch's headers, compiled once for all files of a version."""
    folder = CACHE / f"pch-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    # A copy that includes the real one: `#pragma once` in a main file is a warning.
    (folder / "shim.hpp").write_text('#include "pch.hpp"\n')
    output = folder / "shim.hpp.gch"
    command = [compiler, *flags, "-x", "c++-header", str(folder / "shim.hpp"), "-o", str(output)]
    subprocess.run(command, check=True)
    return folder


def check(compiler: str, flags: list[str], pch: Path, source: Path) -> str:
    """The compiler's complaints about one file; empty when there are none."""
    command = [compiler, *flags, "-I", str(pch), "-include", "shim.hpp", "-fsyntax-only"]
    result = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr or f"exit {result.returncode}"


def main() -> int:
    compiler = os.environ.get("CXX", "g++")
    # The build compiles for the one that is installed; `--all` adds it, with warnings as errors.
    everything = "--all" in sys.argv[1:]
    versions = [v for v in VERSIONS if everything or installed_headers(v) is None]
    sources = sorted((ROOT / "cpp").glob("*.cpp"))
    bridge = bridge_headers()
    passed = failed = 0
    rows = []
    for version in versions:
        headers = installed_headers(version) or wheel_headers(version)
        flags = compile_flags(headers, bridge)
        pch = precompile(compiler, flags, version)
        bad = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            complaints = pool.map(partial(check, compiler, flags, pch), sources)
            for source, complaint in zip(sources, complaints, strict=True):
                if complaint:
                    bad.append(source.name)
                    print(f"torch {version}, {source.name}:\n{complaint}", file=sys.stderr)
        (pch / "shim.hpp.gch").unlink()
        passed += len(sources) - len(bad)
        failed += len(bad)
        rows.append((version, len(sources) - len(bad), ", ".join(bad) or "-"))
    print(f"{'torch':10} {'clean':>5}  with complaints")
    for version, clean, bad_names in rows:
        print(f"{version:10} {clean:>5}  {bad_names}")
    print(f"torch-matrix: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
