"""Compiles the extension `_comms` against the torch that is found, around a prebuilt engine.

For machines without Rust: what cargo makes is carried (`make prebuilt` lays it out), and what
depends on torch is compiled here, with the C++ compiler alone. The result is a folder for
PYTHONPATH. Must not import torch, which would import torchcomms.
"""

from __future__ import annotations

import concurrent.futures
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

ROOT = Path(__file__).resolve().parents[3]
ENGINE, BRIDGE = "libferrocomm.so", "libferrocomm_torch_bridge.a"
HEADERS = ("rust/cxx.h", "ferrocomm-torch-bridge/src/lib.rs.h")
LIBRARIES = ("torch_python", "torch_cpu", "c10")
# Less than a wheel's -O3: the compiler's time counts here.
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
# One file that includes torch takes up to so much.
BYTES_PER_COMPILER = 2 << 30


class NotBuilt(Exception):
    """The extension could not be made; its text says why."""


def torch_root() -> Path:
    """Where the torch of this Python lies."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise NotBuilt(f"{sys.executable} has no torch")
    return Path(spec.submodule_search_locations[0])


def torch_version(torch: Path) -> tuple[int, int]:
    """Its major and minor version, out of its headers."""
    header = torch / "include/torch/headeronly/version.h"
    found = re.findall(r"define TORCH_VERSION_(?:MAJOR|MINOR) (\d+)", header.read_text())
    return int(found[0]), int(found[1])


def missing(prebuilt: Path) -> list[str]:
    """What a folder of prebuilt things lacks, and what this machine lacks to use it."""
    needed = [ENGINE, BRIDGE, *(f"include/{header}" for header in HEADERS)]
    lacks = [str(prebuilt / name) for name in needed if not (prebuilt / name).is_file()]
    python = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not python.is_file():
        lacks.append(f"{python} (Debian: python3-dev)")
    if shutil.which(compiler()[0]) is None:
        lacks.append(f"the C++ compiler {compiler()[0]}")
    return lacks


def compiler() -> list[str]:
    """The C++ compiler; CXX names another."""
    return shlex.split(os.environ.get("CXX", "c++"))


def flags(torch: Path, prebuilt: Path) -> list[str]:
    """What every file is compiled with, as CMake does it."""
    own = [ROOT / "cpp", ROOT / "include", ROOT / "rust/torch-bridge/include", prebuilt / "include"]
    system = [torch / "include", torch / "include/torch/csrc/api/include"]
    system.append(Path(sysconfig.get_paths()["include"]))
    found = [*FLAGS]
    for folder in own:
        found += ["-I", str(folder)]
    for folder in system:
        found += ["-isystem", str(folder)]
    return found


def run(command: list[str]) -> None:
    """Runs a compiler; raises its complaint."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotBuilt(f"{command[-1]}: {done.stderr.strip()[:2000]}")


def jobs() -> int:
    """How many compilers at once."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_COMPILER))


def stamp(prebuilt: Path, torch: Path) -> str:
    """What the extension depends on, in a few letters."""
    digest = hashlib.sha256(repr((torch_version(torch), FLAGS, sys.version)).encode())
    for folder in (ROOT / "cpp", ROOT / "rust/torch-bridge/include", ROOT / "include"):
        for path in sorted(folder.rglob("*.[chm]*")):
            digest.update(path.read_bytes())
    for name in (BRIDGE, *(f"include/{header}" for header in HEADERS)):
        digest.update((prebuilt / name).read_bytes())
    return digest.hexdigest()[:16]


def compile_all(prebuilt: Path, torch: Path, work: Path) -> Path:
    """Compiles and links; gives the extension."""
    work.mkdir(parents=True, exist_ok=True)
    common = [*compiler(), *flags(torch, prebuilt)]
    # A copy that includes the real one: `#pragma once` in a main file is a warning.
    (work / "shim.hpp").write_text('#include "pch.hpp"\n')
    run([*common, "-x", "c++-header", "-o", str(work / "shim.hpp.gch"), str(work / "shim.hpp")])
    sources = sorted((ROOT / "cpp").glob("*.cpp"))
    objects = [work / f"{source.stem}.o" for source in sources]

    def one(source: Path, goal: Path) -> None:
        run([*common, "-include", str(work / "shim.hpp"), "-c", "-o", str(goal), str(source)])

    with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
        list(pool.map(one, sources, objects))
    extension = work / f"_comms{sysconfig.get_config_var('EXT_SUFFIX')}"
    link = [*compiler(), "-shared", "-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,-rpath,$ORIGIN"]
    link += [f"-Wl,--version-script={ROOT / 'cpp/exports.map'}", "-o", str(extension)]
    link += [*map(str, objects), str(prebuilt / BRIDGE), str(prebuilt / ENGINE)]
    run([*link, *(str(torch / "lib" / f"lib{name}.so") for name in LIBRARIES), "-ldl"])
    return extension


def entry_points() -> str:
    """The package's entry points, as an installation would note them."""
    text = (ROOT / "pyproject.toml").read_text()
    sections = re.findall(r'^\[project\.entry-points\."([^"]+)"\]\n((?:\w.*\n)+)', text, re.M)
    return "\n".join(f"[{name}]\n{lines}" for name, lines in sections).replace('"', "")


def assemble(prebuilt: Path, torch: Path, extension: Path, folder: Path) -> None:
    """Lays the package out as an installation would."""
    package = folder / "torchcomms"
    if folder.exists():
        shutil.rmtree(folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python/torchcomms", package, ignore=ignored)
    shutil.copytree(ROOT / "include", package / "include")
    shutil.copy2(extension, package)
    shutil.copy2(prebuilt / ENGINE, package)
    (found,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    built = (ROOT / "cmake/_build_info.py.in").read_text()
    built = built.replace("@TORCH_VERSION@", "{}.{}".format(*torch_version(torch)))
    (package / "_build_info.py").write_text(built.replace("@SKBUILD_PROJECT_VERSION@", found))
    info = folder / f"ferrocomm-{found}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: ferrocomm\nVersion: {found}\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(entry_points())


def make(prebuilt: Path, build: Path) -> Path:
    """The folder for PYTHONPATH; compiled anew when something it depends on has changed."""
    lacks = missing(prebuilt)
    if lacks:
        raise NotBuilt("missing: " + ", ".join(lacks))
    torch = torch_root()
    if torch_version(torch) < (2, 11):
        raise NotBuilt("torch {}.{} is too old; 2.11 is the first".format(*torch_version(torch)))
    work = build / f"shim-{stamp(prebuilt, torch)}"
    extension = work / f"_comms{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not (work / "complete").exists():
        extension = compile_all(prebuilt, torch, work)
        (work / "complete").touch()
    folder = build / "package"
    assemble(prebuilt, torch, extension, folder)
    return folder


def main() -> int:
    """`python shim.py PREBUILT BUILD` prints the folder for PYTHONPATH."""
    try:
        print(make(Path(sys.argv[1]), Path(sys.argv[2])))
    except NotBuilt as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
