"""Process groups: sub-groups, making and destroying them, what torch asks of a backend."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank
from test_environment import free_port
from torch.distributed import config

import torchcomms

CPU = torch.device("cpu")


def backend_of(group: dist.ProcessGroup) -> dist.Backend:
    return group._get_backend(CPU)


def subgroups(me: Rank) -> None:
    me.world()
    pair = dist.new_group([2, 3])
    low, high = dist.new_group([0, 1]), dist.new_group([3, 1])
    if me.rank >= 2:
        tensor = torch.tensor([me.rank])
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 5
        # ranks of a collective are the world's, and translated
        dist.broadcast(tensor.fill_(me.rank), 3, group=pair)
        assert tensor.item() == 3
        assert dist.get_global_rank(pair, 0) == 2
        if me.rank == 2:
            dist.send(torch.tensor([8]), 3, group=pair)
        else:
            dist.recv(tensor, 2, group=pair)
            assert tensor.item() == 8
    else:
        dist.barrier(group=low)
    own, every = dist.new_subgroups(2)
    assert len(every) == 2
    tensor = torch.tensor([me.rank])
    dist.all_reduce(tensor, group=own)
    assert tensor.item() == (1 if me.rank < 2 else 5)
    if me.rank in (1, 3):
        out: list[object] = [None, None]
        dist.all_gather_object(out, me.rank, group=high)
        assert out == [1, 3]
    tensor = torch.tensor([1])
    dist.all_reduce(tensor)
    assert tensor.item() == 4
    for group in (pair, low, high):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()
    dist.destroy_process_group()


def test_subgroups(job_over):
    job_over(subgroups, 4)


def split_groups(me: Rank) -> None:
    me.world(device_id=torch.device("cpu", 0))
    halves = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert isinstance(backend_of(halves), torchcomms._comms._BackendWrapper)
    tensor = torch.tensor([me.rank])
    dist.all_reduce(tensor, group=halves)
    assert tensor.item() == (1 if me.rank < 2 else 5)
    dist.destroy_process_group()


def test_split_group(job):
    job(split_groups, 4)


def mesh(me: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    me.world()
    line = init_device_mesh("cpu", (4,))
    tensor = torch.tensor([float(me.rank)])
    dist.all_reduce(tensor, group=line.get_group())
    assert tensor.item() == 6.0
    cube = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("far", "one", "near"))
    for names, expected in (
        (("far",), me.rank % 2 * 2.0 + 2),
        (("one",), float(me.rank)),
        (("near",), me.rank // 2 * 4.0 + 1),
        (("far", "near"), 6.0),
        (("one", "near"), me.rank // 2 * 4.0 + 1),
    ):
        part = cube[names] if len(names) == 1 else cube[names]._flatten()
        tensor = torch.tensor([float(me.rank)])
        dist.all_reduce(tensor, group=part.get_group())
        assert tensor.item() == expected, names
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    tensor = torch.tensor([float(me.rank)])
    dist.all_reduce(tensor, group=grid.get_group("columns"))
    assert tensor.item() == (1.0 if me.rank < 2 else 5.0)
    full = torch.arange(24.0).reshape(4, 6)
    spread = distribute_tensor(full, grid, [Shard(0), Shard(1)])
    assert torch.equal(spread.full_tensor(), full)
    moved = spread.redistribute(placements=[Replicate(), Shard(0)])
    assert torch.equal(moved.full_tensor(), full)
    dist.destroy_process_group()


def test_device_mesh(job):
    job(mesh, 4)


def rounds(me: Rank, count: int) -> None:
    config.use_torchcomms = True
    for number in range(count):
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        group = dist.new_group()
        tensor = torch.tensor([number + me.rank])
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor)
        assert tensor.item() == (2 * number + 1) * 2
        if number % 3 == 0:
            dist.destroy_process_group(group)
        dist.destroy_process_group()
        assert not dist.is_initialized()
        del group
        # torch's own store of the last round must be gone from the port: a rank that is faster
        # would dial it, whichever backend the group had.
        me.meet(f"round {number}")
    assert not torchcomms.engine_info()["communicators"]


def test_thirty_rounds_on_one_port(job_over):
    job_over(rounds, 2, 30, env={"MASTER_PORT": str(free_port())})


def flat(me: Rank) -> None:
    """Nothing piles up: descriptors and threads stay where they were after the first rounds."""

    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    comm = me.comm("parent")
    after_first = None
    for number in range(60):
        child = comm.split(list(range(me.size)), f"child{number}")
        child.all_reduce(torch.ones(10), torchcomms.ReduceOp.SUM)
        child.finalize()
        del child
        comm.barrier()
        if number == 10:
            after_first = used()
    descriptors, tasks = used()
    assert descriptors <= after_first[0] + 2, (after_first, descriptors)
    assert tasks <= after_first[1] + 2, (after_first, tasks)
    comm.finalize()


def test_groups_leave_nothing_behind(job_over):
    job_over(flat, 2)


def identity(me: Rank) -> None:
    made: list[object] = []
    original = dist.distributed_c10d.new_comm

    def noted(*arguments: object, **keywords: object) -> object:
        made.append(original(*arguments, **keywords))
        return made[-1]

    dist.distributed_c10d.new_comm = noted
    me.world()
    backend = backend_of(dist.group.WORLD)
    assert backend.get_comm() is made[0]
    assert backend.get_comm() is dist.distributed_c10d._world.comms[0]
    group = dist.new_group()
    assert backend_of(group).get_comm() is made[1]
    # finalize, then destroy; destroy a group and then the world
    backend_of(group).get_comm().finalize()
    dist.destroy_process_group(group)
    backend.get_comm().finalize()
    backend.shutdown()
    dist.destroy_process_group()
    assert made[0].state() == made[1].state() == "finalized"


def test_get_comm_is_the_object_that_new_comm_returned(job):
    job(identity, 2)


def third_party(me: Rank) -> None:
    """A c10d backend that is not ours is used untouched while the switch is on."""
    made = []

    class Dummy(dist.ProcessGroup):
        def __init__(self, rank: int, size: int) -> None:
            super().__init__(rank, size)
            made.append(self)

        def getBackendName(self) -> str:
            return "dummy"

        def allreduce(self, tensors: list[torch.Tensor], _options: object = None) -> dist.Work:
            tensors[0].fill_(42)
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            future.set_result(tensors)
            return torch._C._distributed_c10d._create_work_from_future(future)

    def make(_store: object, rank: int, size: int, _timeout: object) -> Dummy:
        return Dummy(rank, size)

    dist.Backend.register_backend("dummy", make, devices=["cpu"])
    config.use_torchcomms = True
    dist.init_process_group("dummy", store=me.store(), rank=me.rank, world_size=me.size)
    assert dist.group.WORLD is made[0]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 42
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
def test_a_backend_of_others_is_untouched(job, size):
    job(third_party, size)


def contract(me: Rank) -> None:
    """What torch asks of a backend besides collectives."""
    me.world(timeout=25)
    backend = backend_of(dist.group.WORLD)
    assert backend.rank() == me.rank
    assert backend.size() == me.size
    assert not backend.supports_splitting
    assert backend.options._timeout == timedelta(seconds=25)
    backend.set_timeout(timedelta(seconds=13))
    assert backend.get_comm().get_timeout() == timedelta(seconds=13)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=12), dist.group.WORLD)
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=1))
    backend.eager_connect_single_device(CPU)
    dist.barrier(device_ids=[0])
    backend.shutdown()
    backend.shutdown()
    dist.destroy_process_group()


def test_what_torch_asks_of_a_backend(job):
    job(contract, 2)


def restarted(me: Rank) -> None:
    """A second attempt on the store of the first, whose keys are still there."""
    store = me.store("kept")
    for attempt in range(3):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        comm = torchcomms.new_comm(
            "gloo", "cpu", store=store, name="job", timeout=timedelta(seconds=20)
        )
        comm.barrier()
        me.meet(f"attempt {attempt}")
        comm.abort()


def test_restarts_have_key_spaces_of_their_own(job):
    job(restarted, 2)
