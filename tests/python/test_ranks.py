"""The launcher of these tests: whatever goes wrong on a rank fails the job, and says so."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from ranks import Rank, RanksFailed


def returns(me: Rank) -> int:
    return me.rank * 10


def raises(me: Rank) -> None:
    assert me.rank != 1, "of its own"


def hangs(me: Rank) -> None:
    if me.rank == 1:
        sys.stderr.write("last words\n")
        threading.Event().wait()


def dies(me: Rank) -> None:
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_back_in_rank_order(job):
    assert job(returns, 3) == [0, 10, 20]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (raises, r"rank 1 raised[\s\S]*of its own"),
        (hangs, r"rank 1 did not end[\s\S]*last words[\s\S]*in hangs"),
        (dies, "rank 1 died"),
    ],
)
def test_a_rank_that_fails_fails_the_job(job, body, words):
    start = time.monotonic()
    with pytest.raises(RanksFailed, match=words):
        job(body, 2, limit=2.0)
    assert time.monotonic() - start < 30


def test_a_rank_that_was_to_die_must(job):
    assert job(dies, 2, dies={1}) == [None, None]
    with pytest.raises(RanksFailed, match="was to die"):
        job(returns, 2, dies={1})
