"""Starts a program with children of its own and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path


def launch_and_end(
    command: list[str], environment: Mapping[str, str], limit: float, cwd: Path | None = None
) -> tuple[int, str]:
    """Exit code and output of `command`; after `limit` seconds it is ended with all its ranks."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            # torchrun passes this on to its ranks, which are sessions of their own.
            os.kill(process.pid, signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            return 124, f"{output}\nended after {limit:g} s"
