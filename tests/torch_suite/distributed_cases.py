"""torch's own DistributedTest, as pytest finds it; `run.py` beside this file starts it.

What torch's repository keeps in a script that is not in the wheel: the class with the tests and the
one that starts ranks, put together. Ranks are forked, so that torch is imported once.

With SUITE_ENGINE=ferrocomm every process refuses to run a test that torch's own backend would serve:
torch falls back to it without a word.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import config
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

OURS = os.environ["SUITE_ENGINE"] == "ferrocomm"
config.use_torchcomms = OURS


class TestSuite(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


_init_process_group = dist.init_process_group


def _init_and_look(*arguments: Any, **options: Any) -> None:
    """`init_process_group`, and whether the engine serves that is meant to."""
    _init_process_group(*arguments, **options)
    import torchcomms

    served = {group["served_by"] for group in torchcomms.engine_info()["groups"]}
    expected = {"ferrocomm"} if OURS else {"torch"}
    if served != expected:
        raise AssertionError(f"served by {served}, expected {expected}")


dist.init_process_group = _init_and_look
