"""Communicators whose members change, on the simulated GPU: `python elastic.py NAME...`.

This process has no communicator: it forks the ranks, tells them what to do and kills some, as
tests/python/rejoin.py does on the host, whose harness it is.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rejoin

import torchcomms
from torchcomms import _comms

DEVICES = 32
SUM = rejoin.SUM
ROUNDS = 10

# Ranks from this one on hang in NCCL's call that makes a communicator.
HANGING_FROM = 1000


class Worker(rejoin.Worker):
    """A rank on a device of its own."""

    def __init__(self, index: int) -> None:
        self.store, self.index = rejoin.Counting(), index
        os.environ["SIMGPU_RANK"] = str(index)
        if index >= HANGING_FROM:
            os.environ["SIMGPU_NEVER_JOINS"] = f"{index}:0"
        torch.cuda.set_device(index % DEVICES)
        self.told: list[str] = []
        self.pending: Any = None
        self.comm = torchcomms.new_comm(
            "nccl",
            torch.device("cuda", index % DEVICES),
            name="elastic",
            store=self.store,
            timeout=timedelta(seconds=rejoin.LIMIT),
            enable_reconfigure=True,
            hints={"blocking": os.environ.get("ELASTIC_BLOCKING", "true")},
        )
        self.ways: list[str] = []
        _comms._set_log_callback(self._hear, 3)
        self.comm.register_abort_hook(lambda: self.told.append("hook"))

    def compute(self, elements: int) -> float:
        tensor = torch.full((elements,), float(self.index)).cuda()
        self.comm.all_reduce(tensor, SUM)
        host = tensor.cpu()
        assert bool((host == host[0]).all())
        return float(host[0])

    def lose(self, elements: int, answer: Any) -> str:
        tensor = torch.zeros(elements).cuda()
        try:
            for turn in range(1 << 30):
                self.comm.all_reduce(tensor, SUM, async_op=True).wait_blocking()
                if turn == 2:
                    answer("computing")
        except RuntimeError as error:
            return str(error)
        return "it never failed"

    def begin(self) -> None:
        """Starts an operation that the others do not come to."""
        self.pending = self.comm.all_reduce(torch.zeros(4).cuda(), SUM, async_op=True)

    def ended(self) -> str:
        """How it ended."""
        try:
            self.pending.wait_blocking()
        except RuntimeError as error:
            return str(error)
        return "well"

    def state(self) -> str:
        return self.comm.state()

    def hooks(self) -> list[str]:
        return self.told

    def attempt(self, uuid: int, handles: list[str], seconds: float = rejoin.LIMIT) -> str:
        """What a reconfiguration raises."""
        try:
            self.comm.reconfigure(uuid, handles, timeout=timedelta(seconds=seconds)).wait()
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def _hear(self, _level: int, _target: str, message: str) -> None:
        if found := re.search(r"way=(.*)", message):
            self.ways.append(found[1])

    def made_by(self, count: int) -> list[str]:
        """How its communicators were made, once it has heard of so many."""
        deadline = time.monotonic() + rejoin.LIMIT
        while len(self.ways) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.ways

    def start_attempt(self, uuid: int, handles: list[str]) -> None:
        self.pending = self.comm.reconfigure(uuid, handles)


rejoin.Worker = Worker  # type: ignore[misc]
if os.environ["WORLD_SIZE"] == "1":
    # Before CUDA is asked: a device for each of the ranks that this process will start.
    os.environ["SIMGPU_DEVICES"] = str(DEVICES)


def everybody(ranks: list[rejoin.Process], command: str, **arguments: Any) -> list[Any]:
    for process in ranks:
        process.tell(command, **arguments)
    return [process.answer() for process in ranks]


def regrouped(job: rejoin.Job, ranks: list[rejoin.Process], ordered: bool = True) -> None:
    """`ranks` become the group, and compute."""
    job.ranks = job.regroup(ranks, ordered)
    job.compute(16)
    job.compute(300_000)


def sizes_and_orders(job: rejoin.Job) -> None:
    a, b, c = (job.start() for _ in range(3))
    assert everybody([a, b, c], "state") == ["unconfigured"] * 3
    regrouped(job, [a, b, c])
    # Fewer, one alone, more again, another order, the same again, one replaced.
    regrouped(job, [a, c])
    regrouped(job, [c])
    regrouped(job, [c, a])
    regrouped(job, [b, a, c])
    regrouped(job, [b, a, c])
    regrouped(job, [b, a, job.start()])
    # A set: those that were together come first, in their order there.
    regrouped(job, [c, a, b], ordered=False)
    assert job.ranks == [b, a, c], "those that were together come first"
    # c was in all but one of them.
    ways = ["Fresh", "Shrink([1])", "Shrink([0])", "Grow(1)", "Fresh", "Fresh", "Fresh"]
    if os.environ.get("FERROCOMM_NCCL_LIB"):
        # One that is too old for that.
        ways = ["Fresh"] * len(ways)
    found = c.ask("made_by", count=len(ways))
    assert found == ways, found
    assert everybody([a, b, c], "hooks") == [[]] * 3, "nothing went wrong"
    assert all(count["requests"] == 0 for count in everybody([a, b, c], "count"))


def refusals(job: rejoin.Job) -> None:
    ranks = [job.start() for _ in range(2)]
    regrouped(job, ranks)
    handles = everybody(ranks, "handle")
    for text in everybody(ranks, "attempt", uuid=job.uuid, handles=handles):
        assert re.match("ValueError.*this uuid was used before", text), text
    foreign = [handle.removeprefix("nccl+") for handle in handles]
    for text in everybody(ranks, "attempt", uuid=100, handles=foreign):
        assert re.match("ValueError.*not of a communicator of this engine", text), text
    text = ranks[0].ask("attempt", uuid=101, handles=handles[1:])
    assert re.match("ValueError.*is not among the handles", text), text
    # Nothing has changed.
    job.compute(16)
    # One that does not come is named, and all may try again.
    text = ranks[0].ask("attempt", uuid=102, handles=handles, seconds=1)
    assert re.search("time-out.*position 1", text), text
    assert ranks[0].ask("state") == "failed"
    regrouped(job, ranks)
    # After an abort; and what is pending when another one leaves fails with the reason.
    assert everybody(ranks, "abort") == ["aborted"] * 2
    regrouped(job, ranks[::-1])
    ranks[0].ask("begin")
    handles = everybody(ranks, "handle")
    assert ranks[1].ask("attempt", uuid=103, handles=handles[1:]) == "nothing"
    text = ranks[0].ask("ended")
    assert re.search("aborted.*reconfigured", text), text
    assert ranks[0].ask("state") == "failed"
    regrouped(job, ranks)
    ranks[0].ask("begin")
    regrouped(job, ranks)
    assert "aborted: the communicator was reconfigured" in ranks[0].ask("ended")


def joining(process: rejoin.Process) -> int:
    """How many of its threads are in a call of NCCL's that makes a communicator."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/comm")
    return sum(task.read_text().strip() == "fc-joining" for task in tasks)


def lost_on_the_way(job: rejoin.Job) -> None:
    """A member hangs in NCCL's call: it is killed; and, the next time, another one gives up."""
    global HANGING_FROM
    ranks = [job.start() for _ in range(2)]
    regrouped(job, ranks)
    HANGING_FROM = len(ranks)
    for uuid, words in ((101, "peer lost"), (102, "aborted")):
        hanging = job.start()
        trio = [*ranks, hanging]
        handles = everybody(trio, "handle")
        # One that was left behind hangs for as long as the one it waits for would have.
        before = [joining(process) for process in trio]
        everybody(trio, "start_attempt", uuid=uuid, handles=handles)
        deadline = time.monotonic() + rejoin.LIMIT
        while [joining(process) for process in trio] != [count + 1 for count in before]:
            assert time.monotonic() < deadline, "not all are in the call"
            time.sleep(0.01)
        job.ranks = list(ranks)
        if words == "aborted":
            ranks[1].ask("abort")
        else:
            hanging.end()
        for text in everybody(ranks, "ended"):
            assert words in text, text
        if words == "aborted":
            assert ranks[1].ask("state") == "aborted"
            hanging.end()
        regrouped(job, ranks)
    HANGING_FROM = 1000


def through_torch() -> None:
    """The reconfigure family of c10d, by ranks that a launcher started."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    board = dist.TCPStore(address, port, size, rank == 0)
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.config.use_torchcomms = True
    dist.init_process_group(
        # torch refuses groups of several backends, which "nccl" alone would be.
        "cuda:nccl",
        store=dist.PrefixStore("group", board),
        rank=rank,
        world_size=size,
        device_id=device,
        enable_reconfigure=True,
    )
    group = dist.group.WORLD
    assert dist._supports_reconfigure()
    for uuid, members in ((1, [0, 1]), (2, [1]), (3, [1, 0])):
        board.set(f"{uuid} {rank}", dist._get_reconfigure_handle())
        handles = [board.get(f"{uuid} {member}").decode() for member in members]
        if rank in members:
            dist._reconfigure(uuid=uuid, handles=handles).wait()
            assert (group.rank(), group.size()) == (members.index(rank), len(members))
            tensor = torch.full((4,), float(rank + 1)).cuda()
            group.allreduce([tensor]).wait()
            assert tensor.tolist() == [float(sum(members) + len(members))] * 4
        board.set(f"{uuid} {rank} over", "")
        board.wait([f"{uuid} {other} over" for other in range(size)])
    dist.destroy_process_group()
    # The server goes last.
    board.set(f"done {rank}", "")
    if rank == 0:
        board.wait([f"done {other}" for other in range(size)])


def rounds() -> None:
    """As on the host: kill, shrink, rejoin."""
    seen = rejoin.run(ROUNDS, "shm")
    assert seen["requests"] == 0, seen
    assert seen["late"]["descriptors"] <= seen["early"]["descriptors"], seen


def with_ranks(program: Callable[[rejoin.Job], None]) -> None:
    job = rejoin.Job()
    try:
        program(job)
        for process in job.ranks:
            process.tell("finalize")
        assert [process.answer() for process in job.ranks] == ["finalized"] * len(job.ranks)
    finally:
        for process in job.ranks:
            process.end()


def main() -> None:
    for name in sys.argv[1:]:
        if name in ("rounds", "through_torch"):
            globals()[name]()
        else:
            with_ranks(globals()[name])
        print("DONE", name, flush=True)


if __name__ == "__main__":
    main()
