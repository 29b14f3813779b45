"""What the numbers hold for: machine, kernel, versions, date. Measures nothing."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from torchcomms import _build_info
from torchcomms._bench import _cells, _systems

# Above this others use the cores that are measured.
MOST_LOAD = 0.7


def facts() -> dict[str, Any]:
    """About this machine and moment."""
    load = os.getloadavg()[0]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": len(_systems.available_cores()),
        "memory_gib": round(_memory() / (1 << 30), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load": round(load, 2),
        "busy": load > MOST_LOAD,
        "versions": {
            "ferrocomm": _build_info.VERSION,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }


def mpi_versions(systems: list[str]) -> dict[str, str]:
    """First line with a version that each launcher prints; nothing for what is not here."""
    found = {}
    for name in _cells.MPI:
        launcher = shutil.which(f"mpirun.{name}")
        if name not in systems or launcher is None:
            continue
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
        lines = [line.strip() for line in done.stdout.splitlines() if any(map(str.isdigit, line))]
        if lines:
            found[name] = lines[0].split()[-1]
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
