"""`python -m torchcomms selftest`: passes here, shows progress, and sees what is wrong."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest
import torch

from torchcomms import __main__
from torchcomms._selftest import _checks, _command, _wrong


def test_it_passes_with_a_progress_bar_on_a_terminal():
    master, terminal = pty.openpty()
    shown = bytearray()

    def read() -> None:
        # A terminal whose other end is closed is an error to read.
        try:
            while data := os.read(master, 4096):
                shown.extend(data)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "torchcomms", "selftest", "--limit", "280"],
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        os.close(terminal)
        reader.join()
        os.close(master)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("selftest passed: 2 ranks on gloo, shm")
    tried = {line.split()[1] for line in lines[:-1]}
    assert {
        "all_reduce",
        "scatter",
        "send_recv",
        "batch",
        "split",
        "window",
        "reconfigure",
        "time-out",
    } <= tried
    assert all(line.startswith("ok") for line in lines[:-1])
    assert b"[####" in shown


def test_a_rank_that_dies_fails_the_test(monkeypatch, capsys):
    monkeypatch.setattr(_command.sys, "executable", "/bin/false")
    assert __main__.main(["selftest"]) == 1
    out = capsys.readouterr().out
    assert "FAILED   rank 0 ended with 1" in out
    assert "selftest FAILED" in out


def test_a_rank_that_hangs_fails_the_test(monkeypatch, tmp_path, capsys):
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(_command.sys, "executable", str(program))
    assert __main__.main(["selftest", "--limit", "0.2"]) == 1
    assert "rank 1 did not end within the limit" in capsys.readouterr().out


def test_a_fault_is_reported_with_its_rank():
    results = _command.Results(ranks=2)
    for rank in range(2):
        results.add(rank, {"total": 2, "backend": "gloo", "transport": {"transport": "shm"}})
    good = {"line": "scatter", "name": "int8", "fault": None, "skipped": False}
    bad = {"line": "reduce", "name": "int8 SUM", "fault": "element 3 is 2", "skipped": False}
    for rank, fact in ((0, good), (0, good), (1, good), (1, bad)):
        results.add(rank, fact)
    assert not results.passed()
    assert "FAILED   rank 1: reduce int8 SUM: element 3 is 2" in results.summary(1.0)
    short = _command.Results(ranks=1, total=2)
    short.add(0, good)
    assert not short.passed()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex32, torch.float8_e5m2])
def test_a_wrong_element_is_seen(dtype):
    right = torch.tensor([1, 0, 1]).to(dtype)
    wrong = torch.tensor([1, 1, 1]).to(dtype)
    _checks._same(right, right.clone())
    with pytest.raises(_wrong.Wrong, match="expected"):
        _checks._same(wrong, right)


def test_options_that_cannot_work_are_named(capsys):
    assert __main__.main(["selftest", "--ranks", "0"]) == 2
    assert "expected 1 to 16" in capsys.readouterr().err
    if torch.cuda.device_count() == 0:
        assert __main__.main(["selftest", "--device", "cuda"]) == 2
        assert "NCCL needs a GPU per rank" in capsys.readouterr().err
