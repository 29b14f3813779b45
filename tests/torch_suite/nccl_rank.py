"""One rank of torch's DistributedTest with BACKEND=nccl; `run_nccl.py` starts it on the simulator.

The tests run one after the other in this process, each on a world of its own. Writes what became of
each as JSON to the file OUTCOMES followed by the rank: passed, skipped, failed, and why.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import unittest
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from simops import SimOps
from torch.distributed import config

OURS = os.environ["SUITE_ENGINE"] == "ferrocomm"
config.use_torchcomms = OURS

from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Of one test; it guards against a hang.
LIMIT = 40
# What stock's events come from does not happen here: the tests' look at the profiler finds none.
distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    pass


class Overdue(Exception):
    """A test that takes too long."""


def overdue(_number: int, _frame: Any) -> None:
    raise Overdue(f"took longer than {LIMIT} s")


def check_served() -> None:
    import torchcomms

    served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
    if served != {"ferrocomm" if OURS else "torch"}:
        raise AssertionError(f"served by {served}")


def run(number: int, name: str, meeting: dist.Store) -> tuple[str, str]:
    """Outcome and reason."""
    # The tests' own barriers count; ranks that a failure has parted count alike again.
    distributed_test.Barrier.barrier_id = 1000 * number
    test = Suite(name)
    test.rank = RANK
    test.file_name = f"{os.environ['TEMP_DIR']}/world.{name}"
    signal.alarm(LIMIT)
    try:
        dist.init_process_group(
            "nccl",
            init_method=f"file://{test.file_name}",
            world_size=SIZE,
            rank=RANK,
            timeout=timedelta(seconds=20),
        )
        check_served()
        # As torch's runner does: nobody is in the test before all have a world.
        meeting.set(f"{name}/{RANK}", "")
        meeting.wait([f"{name}/{rank}" for rank in range(SIZE)], timedelta(seconds=LIMIT))
        getattr(test, name)()
        torch.cuda.synchronize()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as left:
        reason = REASONS.get(int(left.code or 0))
        return ("skipped", reason) if reason else ("failed", f"exit code {left.code}")
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
    finally:
        signal.alarm(0)
        leave()


def leave() -> None:
    """The next test makes a world of its own."""
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
    except Exception:
        traceback.print_exc()


def main() -> None:
    signal.signal(signal.SIGALRM, overdue)
    torch.cuda.set_device(RANK)
    folder = os.environ["TEMP_DIR"]
    meeting = dist.FileStore(f"{folder}/meeting", SIZE)
    outcomes = {}
    with SimOps():
        for number, name in enumerate(sys.argv[1:]):
            print(f"=== {name}", flush=True)
            outcomes[name] = run(number, name, meeting)
            with open(f"{os.environ['OUTCOMES']}.{RANK}", "w") as file:
                json.dump(outcomes, file)


if __name__ == "__main__":
    main()
