"""Communicators whose members change: new_comm(enable_reconfigure=True) and what follows."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import rejoin
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms

SUM = torchcomms.ReduceOp.SUM


def elastic(name: str = "elastic", timeout: float = 20.0, **arguments) -> torchcomms.TorchComm:
    """A communicator without members. Its store counts, and serves nobody."""
    arguments.setdefault("store", rejoin.Counting())
    return torchcomms.new_comm(
        "gloo",
        "cpu",
        name=name,
        timeout=timedelta(seconds=timeout),
        enable_reconfigure=True,
        **arguments,
    )


class Board:
    """What ranks tell one another beside the engine."""

    def __init__(self, me: Rank) -> None:
        self.me = me
        self.store = me.store("board")
        self.turn = 0

    def all(self, text: str) -> list[str]:
        """What every rank says."""
        self.turn += 1
        self.store.set(f"{self.turn}/{self.me.rank}", text)
        keys = [f"{self.turn}/{rank}" for rank in range(self.me.size)]
        self.store.wait(keys, timedelta(seconds=60))
        return [self.store.get(key).decode() for key in keys]

    def meet(self) -> None:
        self.all("here")


def works(comm: torchcomms.TorchComm, rank: int, size: int) -> None:
    """`comm` has these members, and they compute."""
    assert (comm.get_rank(), comm.get_size(), comm.state()) == (rank, size, "ready")
    for elements in (4, 100_000):
        tensor = torch.full((elements,), float(1 << rank))
        comm.all_reduce(tensor, SUM)
        assert tensor[0] == tensor[-1] == (1 << size) - 1


def sizes_and_orders(me: Rank) -> None:
    board = Board(me)
    store = rejoin.Counting()
    comm = elastic(store=store)
    assert (comm.state(), comm.get_rank(), comm.get_size()) == ("unconfigured", me.rank, me.size)
    with pytest.raises(RuntimeError, match=r"no members yet.*call reconfigure"):
        comm.all_reduce(torch.ones(4), SUM)
    with pytest.raises(RuntimeError, match="no members yet"):
        comm.split([0])

    def regroup(uuid: int, members: list[int], kind=list) -> None:
        """`members` become the group; the others look on."""
        handles = board.all(comm.get_init_handle())
        if me.rank in members:
            work = comm.reconfigure(uuid, kind(handles[member] for member in members))
            work.wait()
            assert work.is_completed()
            assert work.status == torchcomms.WorkStatus.COMPLETED
            if kind is list:
                works(comm, members.index(me.rank), len(members))
        board.meet()

    # All, fewer, one alone, all in another order; the last rank comes late.
    regroup(1, [0, 1, 2])
    regroup(2, [0, 2])
    regroup(3, [2])
    regroup(4, [3, 2, 1, 0])
    # The same members again, and one replaced.
    regroup(5, [3, 2, 1, 0])
    regroup(6, [3, 1, 0])
    regroup(7, [3, 2, 0])
    # A set: first those that were together, in their order there; then the rest.
    regroup(8, [0, 1, 2, 3], set)
    assert comm.get_rank() == {3: 0, 2: 1, 0: 2}.get(me.rank, 3)
    works(comm, comm.get_rank(), 4)
    # A child has the members it was made with.
    child = comm.split(sorted([0, 1, 2, 3], key=lambda rank: -rank), "child")
    regroup(9, [0, 1], set)
    child.barrier()
    child.finalize()
    assert store.requests == 0
    board.meet()
    comm.finalize()
    for call in (comm.get_init_handle, lambda: comm.reconfigure(99, ["x"])):
        with pytest.raises(RuntimeError, match="finalized"):
            call()


def test_members_change_in_number_and_order(job_over):
    job_over(sizes_and_orders, 4)


def refusals(me: Rank) -> None:
    board = Board(me)
    comm = elastic(hints={"eager": "true"})
    comm.set_timeout(timedelta(seconds=17))
    if me.rank == 2:
        handles = board.all(comm.get_init_handle())
        board.meet()
        board.meet()
        # Those that were there know the uuid, and this one is told.
        with pytest.raises(RuntimeError, match=r"uuid was used before.*uuid 7"):
            comm.reconfigure(7, handles).wait()
        assert comm.state() == "unconfigured"
        board.meet()
        comm.reconfigure(8, handles).wait()
        works(comm, 2, 3)
        board.meet()
        return
    handles = board.all(comm.get_init_handle())
    members = handles[:2]
    comm.reconfigure(torchcomms.ReconfigureOptions(7, members)).wait()
    works(comm, me.rank, 2)
    board.meet()
    # What is refused changes nothing.
    wrong = [
        (7, handles, "uuid was used before"),
        (70, [handles[1 - me.rank], handles[2]], "not among the handles"),
        (71, [], "number of handles"),
        (72, [handles[me.rank]] * 2, "twice"),
        (73, [handles[me.rank], "what is this"], "cannot be read"),
        (74, [handles[me.rank], "ferrocomm:2:00"], "another version"),
    ]
    for uuid, bad, words in wrong:
        with pytest.raises((ValueError, RuntimeError), match=words):
            comm.reconfigure(uuid, bad)
    with pytest.raises(ValueError, match="time-out is not positive"):
        comm.reconfigure(75, members, timeout=timedelta(0))
    with pytest.raises(TypeError):
        comm.reconfigure("eight", members)
    works(comm, me.rank, 2)
    board.meet()
    board.meet()
    comm.reconfigure(8, handles).wait()
    works(comm, me.rank, 3)
    assert comm.get_timeout() == timedelta(seconds=17)
    board.meet()


def test_what_is_refused_changes_nothing(job):
    job(refusals, 3)


def differing_lists(me: Rank) -> None:
    board = Board(me)
    comm = elastic()
    handles = board.all(comm.get_init_handle())
    other = [
        [handles[0], handles[2], handles[1]],  # the same leader
        [handles[2], handles[1], handles[0]],  # another leader
        [handles[2], handles[0]],  # another leader, fewer
    ]
    for uuid, list_of_2 in enumerate(other):
        members = list_of_2 if me.rank == 2 else handles
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match="called with different handles") as caught:
            comm.reconfigure(uuid, members).wait()
        text = str(caught.value)
        assert "mismatch" in text, text
        assert "position" in text, text
        assert handles[0][:28] in text or handles[1][:28] in text or handles[2][:28] in text, text
        assert time.monotonic() - begun < 10
        assert comm.state() == "unconfigured"
        board.meet()
    # An agreement later on puts everything right.
    comm.reconfigure(50, handles).wait()
    works(comm, me.rank, 3)
    with pytest.raises(RuntimeError, match="called with different handles"):
        comm.reconfigure(51, handles[::-1] if me.rank == 1 else handles).wait()
    assert comm.state() == "failed"
    assert "different handles" in comm.error()
    with pytest.raises(RuntimeError, match="different handles"):
        comm.barrier()
    board.meet()
    comm.reconfigure(52, handles).wait()
    works(comm, me.rank, 3)
    board.meet()


def test_members_called_with_other_handles_are_told_the_difference(job_over):
    job_over(differing_lists, 3)


def absent(me: Rank) -> None:
    board = Board(me)
    comm = elastic(timeout=30)
    handles = board.all(comm.get_init_handle())
    for uuid, missing in enumerate((0, 2)):
        if me.rank != missing:
            begun = time.monotonic()
            with pytest.raises(RuntimeError, match="did not come") as caught:
                comm.reconfigure(uuid, handles, timeout=timedelta(seconds=1)).wait()
            text = str(caught.value)
            assert f"position {missing}, {handles[missing][:28]}" in text, text
            assert "time-out" in text, text
            assert time.monotonic() - begun < 10
        board.meet()
    # The limit of the wait counts as well, and abort ends what is on its way.
    if me.rank == 1:
        work = comm.reconfigure(5, handles)
        with pytest.raises(RuntimeError, match="being reconfigured"):
            comm.reconfigure(6, handles)
        with pytest.raises(RuntimeError, match="no members yet"):
            comm.barrier()
        with pytest.raises(RuntimeError, match="did not come"):
            work.wait(timeout=timedelta(seconds=0.3))
        work = comm.reconfigure(7, handles)
        comm.abort()
        assert comm.is_aborted()
        with pytest.raises(RuntimeError, match="aborted"):
            work.wait()
        assert work.status == torchcomms.WorkStatus.ERROR
    board.meet()
    if me.rank != 1:
        # Rank 1 has given up this one: nobody waits for it.
        with pytest.raises(RuntimeError, match="rank 1 reports: aborted"):
            comm.reconfigure(7, handles).wait()
    board.meet()
    comm.reconfigure(8, handles).wait()
    works(comm, me.rank, 3)
    # After abort, with something pending on the others.
    tensor = torch.ones(4)
    if me.rank == 0:
        comm.abort()
    else:
        pending = comm.all_reduce(tensor, SUM, async_op=True)
    handles = board.all(comm.get_init_handle())
    work = comm.reconfigure(9, handles)
    if me.rank != 0:
        with pytest.raises(RuntimeError, match="reconfigured"):
            pending.wait()
    work.wait()
    works(comm, me.rank, 3)
    board.meet()
    comm.finalize()


def test_who_does_not_come_is_named_and_all_may_try_again(job_over):
    job_over(absent, 3)


def through_torch(me: Rank) -> None:
    """The reconfigure family of c10d."""
    board = Board(me)
    torch.distributed.config.use_torchcomms = True
    dist.init_process_group(
        "gloo", rank=me.rank, world_size=me.size, store=me.store("world"), enable_reconfigure=True
    )
    group = dist.group.WORLD
    assert dist._supports_reconfigure()
    for uuid, members in ((1, [0, 1, 2]), (2, [2, 1]), (3, [1, 0, 2])):
        handles = board.all(dist._get_reconfigure_handle())
        if me.rank in members:
            work = dist._reconfigure(uuid=uuid, handles=[handles[rank] for rank in members])
            work.wait()
            assert (group.rank(), group.size()) == (members.index(me.rank), len(members))
            tensor = torch.ones(4)
            group.allreduce([tensor]).wait()
            assert tensor.tolist() == [len(members)] * 4
        board.meet()
    dist.destroy_process_group()


@pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure family"
)
def test_through_torch_distributed(job):
    job(through_torch, 3)


def fixed_members(me: Rank) -> None:
    comm = me.comm()
    for call in (comm.get_init_handle, lambda: comm.reconfigure(1, ["x"])):
        with pytest.raises(RuntimeError, match=r"fixed.*enable_reconfigure=True"):
            call()
    comm.finalize()


def test_a_communicator_with_fixed_members_says_so(job):
    job(fixed_members, 1)


def test_rounds_of_kill_shrink_and_rejoin_leave_nothing_behind(transport):
    rejoin.check(rejoin.run(10, transport))
