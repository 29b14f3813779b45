"""Tensors in memory that the other ranks read where it lies."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms

MEBI = 1 << 20


def shared_bytes() -> int:
    """Shared memory mapped by this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not count shared memory")


def segments_of(pid: int | str) -> int:
    """How often the process has shared memory of the allocator or of a peer's mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:ferrocomm")


def new(me: Rank, count: int, mixed: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """From the allocator; `mixed`: on odd ranks an ordinary tensor."""
    if mixed and me.rank % 2 == 1:
        return torch.empty(count, dtype=dtype)
    return torchcomms.get_mem_allocator("gloo").empty([count], dtype)


def collectives(me: Rank, mixed: bool) -> None:
    comm = me.comm()
    comm.barrier()
    size = comm.get_size()
    for count in (0, 1, 1000, 50_000, 2 * MEBI + 3):
        for repeat in range(3):
            base = torch.arange(count) % 1000 + repeat
            tensor = new(me, count, mixed)
            tensor.copy_(base + me.rank)
            comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
            expected = (base * size + sum(range(size))).float()
            assert torch.equal(tensor, expected), (count, repeat)

            outputs = [new(me, count, mixed) for _ in range(size)]
            tensor.copy_(base * (me.rank + 1))
            comm.all_gather(outputs, tensor)
            for rank, output in enumerate(outputs):
                assert torch.equal(output, (base * (rank + 1)).float()), (count, repeat, rank)

            for root in range(size):
                tensor.copy_(base + me.rank)
                comm.broadcast(tensor, root)
                assert torch.equal(tensor, (base + root).float()), (count, repeat, root)
            del tensor, outputs
    comm.finalize()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_of_tensors_from_the_allocator(job_over, mixed, size):
    before = set(os.listdir("/dev/shm"))
    job_over(collectives, size, mixed)
    assert set(os.listdir("/dev/shm")) <= before


def through_torch_distributed(me: Rank) -> None:
    me.world()
    tensor = torchcomms.get_mem_allocator("gloo").empty((512, 1024), torch.float64)
    tensor.fill_(me.rank + 1)
    for _ in range(2):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((512, 1024), 6.0, dtype=torch.float64))
    dist.destroy_process_group()


def test_process_groups_take_tensors_from_the_allocator(job):
    job(through_torch_distributed, 2)


def mapped_by_peers(me: Rank) -> None:
    comm = me.comm()
    comm.barrier()
    before = segments_of("self")
    tensor = comm.get_mem_allocator().empty([4 * MEBI])
    for _ in range(2):
        tensor.fill_(1)
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    # Its own and the peer's.
    assert segments_of("self") == before + 2
    me.meet("mapped")
    # What one frees is free at once, though the peer still has it mapped.
    if me.rank == 0:
        del tensor
        gc.collect()
        me.meet("freed")
    else:
        me.meet("freed")
        tensor.fill_(3)
        assert float(tensor.sum()) == 12 * MEBI
    # While one rank shares nothing, nobody reads in place.
    ordinary = torch.ones(4 * MEBI)
    comm.all_reduce(ordinary, torchcomms.ReduceOp.SUM)
    assert torch.equal(ordinary, torch.full([4 * MEBI], 2.0))
    if me.rank == 0:
        tensor = comm.get_mem_allocator().empty([4 * MEBI])
    for _ in range(2):
        tensor.fill_(1)
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
        assert float(tensor.sum()) == 8 * MEBI
    # Rank 0 told with its next addresses that the first segment is gone.
    assert segments_of("self") == before + 2
    comm.finalize()


def test_peers_map_a_segment_once_and_unmap_what_was_freed(job):
    job(mapped_by_peers, 2, env={"FERROCOMM_HOST_TRANSPORT": "shm"})


def forked(me: Rank) -> None:
    allocator = torchcomms.get_mem_allocator("gloo")
    inherited = allocator.empty([1000])
    inherited.fill_(5)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = [allocator.empty([1000]) for _ in range(10)]
            for tensor in own:
                tensor.fill_(7)
            status = 0 if float(inherited.sum()) == 5000 else 2
            del inherited, own
            gc.collect()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    again = allocator.empty([1000])
    again.fill_(9)
    assert float(inherited.sum()) == 5000


def test_a_forked_child_leaves_the_blocks_of_its_parent_alone(job):
    job(forked, 1)


def test_memory_is_freed_with_the_last_storage():
    allocator = torchcomms.get_mem_allocator("gloo")
    before = shared_bytes()
    tensor = allocator.empty([32 * MEBI], torch.uint8)
    view = tensor.zero_()[100:200]
    assert shared_bytes() >= before + 32 * MEBI
    del tensor
    assert int(view.sum()) == 0
    del view
    assert shared_bytes() < before + 4 * MEBI


def test_tensors_are_ordinary_ones():
    allocator = torchcomms.get_mem_allocator("GLOO")
    assert allocator.backend == "gloo"
    tensor = allocator.empty((3, 5))
    assert (tensor.dtype, tensor.shape, tensor.device.type) == (torch.float32, (3, 5), "cpu")
    assert tensor.data_ptr() % 64 == 0
    like = allocator.empty_like(tensor.to(torch.int64).t())
    assert (like.dtype, like.shape) == (torch.int64, (5, 3))
    like.fill_(4)
    assert like.resize_(100, 100).untyped_storage().nbytes() == 80_000
    assert int(like.flatten()[:15].sum()) == 60
    assert allocator.empty([0]).numel() == 0


def test_shortage_and_wrong_names_are_errors():
    allocator = torchcomms.get_mem_allocator("gloo")
    with pytest.raises(dist.DistBackendError, match="not enough memory"):
        allocator.empty([1 << 50], torch.uint8)
    assert allocator.empty([10]).numel() == 10
    with pytest.raises(ValueError, match="unknown backend"):
        torchcomms.get_mem_allocator("mpi")
    with pytest.raises(NotImplementedError):
        torchcomms.get_mem_allocator("ncclx")
