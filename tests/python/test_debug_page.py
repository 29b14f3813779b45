"""torch's debug server on a live job: its pages about this package are filled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch.distributed as dist
from test_environment import free_port

HERE = Path(__file__).resolve().parent
SCREENSHOT = HERE.parents[1] / "docs" / "debug-page.png"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def page(port: int, name: str) -> str:
    """The page's text; the server is given time to start."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/{name}", timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{name}: {error.read().decode()[-2000:]}") from error
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def take_screenshot(port: int, folder: Path) -> None:
    """The page in docs/, where SCREENSHOT=1 asks for it and there is a browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None or os.environ.get("SCREENSHOT") != "1":
        return
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1250,700"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--screenshot={SCREENSHOT}"]
    command += [f"http://localhost:{port}/torchcomms_fr_trace"]
    subprocess.run(command, check=True, timeout=100, capture_output=True)


def wait_for(paths: list[Path], job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while not all(path.exists() for path in paths):
        if job.poll() is not None or time.monotonic() > deadline:
            pytest.fail("the job did not start")
        time.sleep(0.05)


def test_the_pages_of_a_live_job(tmp_path):
    pytest.importorskip("requests")
    port = free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_port", str(free_port()), str(HERE / "debug_page.py"), str(port)]
    environment = os.environ | {
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1",
        "TORCHCOMM_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
    }
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, str(tmp_path)], env=environment, stdout=log, stderr=subprocess.STDOUT
        ) as job,
    ):
        try:
            wait_for([tmp_path / "ready0", tmp_path / "ready1"], job)
            trace = page(port, "torchcomms_fr_trace")
            assert "all_reduce" in trace
            assert "Failed to fetch" not in trace
            health = page(port, "torchcomms_health_check")
            # Quotes are escaped in the page.
            assert health.count("healthy&#34;: true") + health.count('healthy": true') == 2, health
            assert "all_reduce" in page(port, "torchcomms_fr_trace_json")
            take_screenshot(port, tmp_path)
            dist.FileStore(str(tmp_path / "meeting"), 3).set("seen", "yes")
            assert job.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(30)


def test_a_failed_communicator_is_not_healthy(job):
    job(unhealthy, 2)


def unhealthy(me) -> None:
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer("127.0.0.1", 0)

    def asked(name: str) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/handler/{name}", data=b"", method="POST"
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read().decode())

    os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] = str(me.folder / "new folder" / "dump_")
    comm = me.comm(timeout=0.3)
    assert '"healthy": true' in asked("torchcomms_health_check")
    me.meet("healthy")
    if me.rank == 0:
        with pytest.raises(RuntimeError, match="time-out"):
            comm.barrier(async_op=False)
        health = asked("torchcomms_health_check")
        assert '"healthy": false' in health
        assert "time-out" in health
        assert f"dump_{me.rank}" in asked("torchcomms_fr_dump_file")
        assert "barrier" in (me.folder / "new folder" / f"dump_{me.rank}").read_text()
    me.meet("over")
    server.shutdown()
