"""Communicators whose members change, on the simulated GPU: `python elastic.py NAME`. Ours alone.

This process has no communicator: it forks the ranks, tells them what to do and kills some, as
tests/python/rejoin.py does on the host, whose harness it is.
"""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rejoin

import torchcomms

DEVICES = int(os.environ["SIMGPU_DEVICES"])
SUM = rejoin.SUM
ROUNDS = 10


class Worker(rejoin.Worker):
    """A rank on a device of its own."""

    def __init__(self, index: int) -> None:
        self.store, self.index = rejoin.Counting(), index
        os.environ["SIMGPU_RANK"] = str(index)
        if index >= int(os.environ.get("ELASTIC_HANG_FROM", "1000")):
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
        )
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

    def start_attempt(self, uuid: int, handles: list[str]) -> None:
        self.pending = self.comm.reconfigure(uuid, handles)


rejoin.Worker = Worker  # type: ignore[misc]


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
    ranks = [job.start() for _ in range(2)]
    regrouped(job, ranks)
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


def main() -> None:
    name = sys.argv[1]
    if name == "rounds":
        seen = rejoin.run(ROUNDS, "shm")
        print(seen)
        assert seen["requests"] == 0
        assert seen["late"]["descriptors"] <= seen["early"]["descriptors"], seen
    else:
        job = rejoin.Job()
        try:
            globals()[name](job)
            for process in job.ranks:
                process.tell("finalize")
            assert [process.answer() for process in job.ranks] == ["finalized"] * len(job.ranks)
        finally:
            for process in job.ranks:
                process.end()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
