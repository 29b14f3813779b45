"""What the shared libraries of the installed package show to others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchcomms import _comms

EXTENSION = Path(_comms.__file__)


def symbols(library: Path, *options: str) -> list[str]:
    done = subprocess.run(
        ["nm", "-D", *options, str(library)], capture_output=True, text=True, check=True
    )
    return [line.split()[-1] for line in done.stdout.splitlines()]


def test_the_extension_exports_its_init_function_alone():
    assert symbols(EXTENSION, "--defined-only") == ["PyInit__comms"]


def test_the_engine_exports_the_c_abi_alone():
    names = symbols(EXTENSION.parent / "libferrocomm.so", "--defined-only")
    assert names
    assert all(name.startswith("fc_") for name in names), names


@pytest.mark.parametrize("library", [EXTENSION, EXTENSION.parent / "libferrocomm.so"])
def test_no_library_of_a_gpu_is_needed(library):
    done = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    )
    needed = [line for line in done.stdout.splitlines() if "NEEDED" in line]
    assert needed
    assert not [line for line in needed if "cuda" in line.lower() or "nccl" in line.lower()]
    assert "RPATH" not in done.stdout
