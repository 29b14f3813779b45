"""Windows: memory of every rank that the others write to."""

from __future__ import annotations

import pytest
import windows
from windows import Place

ROUNDS = 1000

# How a rank reaches the others: by an address, through the kernel, or with messages.
WAYS = [
    pytest.param("allocator", {"FERROCOMM_HOST_TRANSPORT": "shm"}, "UNIFIED", id="mapped"),
    pytest.param("plain", {"FERROCOMM_HOST_TRANSPORT": "shm"}, "SEPARATE", id="kernel"),
    pytest.param(
        "allocator",
        {"FERROCOMM_HOST_TRANSPORT": "shm", "FERROCOMM_DIRECT_READS": "off"},
        "SEPARATE",
        id="shm-messages",
    ),
    pytest.param("allocator", {"FERROCOMM_HOST_TRANSPORT": "tcp"}, "SEPARATE", id="tcp"),
    pytest.param("plain", {"FERROCOMM_HOST_TRANSPORT": "tcp"}, "SEPARATE", id="tcp-plain"),
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("memory", "env", "access"), WAYS)
def test_windows_of_every_kind(job, memory, env, access, size):
    # Ranks that share cores take long over messages within the machine, which few jobs need.
    rounds = ROUNDS if "FERROCOMM_DIRECT_READS" not in env else ROUNDS // 5
    found = job(windows.everything, size, Place(memory=memory), rounds, env=env)
    assert found == [f"WIN_ACCESS_TYPE_{access}"] * size


@pytest.mark.parametrize("memory", ["allocator", "plain"])
def test_a_dead_peer_ends_a_wait_by_name(job_over, memory):
    texts = job_over(windows.peer_that_dies, 2, Place(memory=memory), dies=[1])
    assert "peer 1" in texts[0]
    assert "wait_signal" in texts[0]


def test_an_abort_ends_a_wait(job_over):
    texts = job_over(windows.abort_while_waiting, 2, Place(memory="allocator"))
    assert "aborted" in texts[0]


def test_a_dropped_window_leaves_its_memory_to_the_others(job_over):
    job_over(windows.dropped_without_word, 2, Place(memory="allocator"))


def test_a_tensor_can_be_moved_to_shared_memory(job):
    env = {"FERROCOMM_HOST_TRANSPORT": "shm"}
    job(windows.moved_to_shared_memory, 2, env=env)


@pytest.mark.parametrize("memory", ["allocator", "plain"])
def test_windows_of_torch_distributed(job_over, memory):
    job_over(windows.through_torch_distributed, 2, Place(memory=memory))
