"""Runs a few lines in a fresh interpreter: for what depends on how a process starts or ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping


def run_fresh(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, limit: float = 90.0
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with this interpreter; raises TimeoutExpired past `limit` seconds."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "FERROCOMM"))}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=clean | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
