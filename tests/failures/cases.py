"""What a case came to, how a job of ranks reports its cases, and what an error must say."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ranks import Rank

import torchcomms

# What is promised, and where a test fails: the rest is for a busy machine.
PROMISED = 2.0
WATCHDOG = 12.0
# Limit of operations that are to fail for another reason: far beyond the watchdog.
FAR = 30.0

_PEERS = re.compile(r"\[communicator [^\]]*?, peers? ([\d, ]+?)(?:, operation|\])")


class Fault(AssertionError):
    """What was got is not what was expected."""


@dataclass
class Outcome:
    """What one rank says of one case. `seconds` is worth showing where there is a promise."""

    fault: str = ""
    seconds: float | None = None
    note: str = ""


Report = dict[str, Outcome]


@dataclass
class Job:
    """Ranks that run some cases together. The body takes the board and returns its report."""

    name: str
    body: Callable[..., Report]
    size: int
    transport: str
    arguments: tuple[Any, ...] = ()
    dies: tuple[int, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    # processes beside the ranks, of higher numbers
    extra: int = 0
    limit: float = 60.0

    def described(self) -> str:
        return f"{self.name} {self.transport} {self.size} ranks"


@contextmanager
def case(report: Report, name: str) -> Iterator[Outcome]:
    """Runs one case; whatever it raises is its fault and does not keep others from running."""
    outcome = report.setdefault(name, Outcome())
    try:
        yield outcome
    except Fault as error:
        outcome.fault = str(error)
    except Exception:
        outcome.fault = traceback.format_exc(limit=-4)


def expect(holds: bool, what: str, got: object) -> None:
    if not holds:
        raise Fault(f"expected {what}\n      got {got}")


def failure(call: Callable[[], object], what: str) -> str:
    """The text of the error that the call raises; a fault when it raises none."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise Fault(f"expected {what}\n      got no error")


def peers(text: str) -> list[int]:
    """Ranks that an error names as at fault."""
    found = _PEERS.search(text)
    return [int(number) for number in found.group(1).split(",")] if found else []


def expect_kind(text: str, kind: str, named: set[int]) -> None:
    """The kind of the error, and exactly these ranks at fault."""
    expect(text.startswith(kind), f"{kind!r}", text)
    expect(set(peers(text)) == named, f"exactly the ranks {sorted(named)} named", text)


def core(text: str) -> str:
    """What two reports of one cause have in common."""
    return text.split("[")[0].rsplit(" reports: ", 1)[-1].strip()


def expect_failed(comm: torchcomms.TorchComm, text: str) -> None:
    """The communicator has failed for good with that cause; abort and finalize stay legal."""
    expect(comm.state() == "failed", "the state 'failed'", comm.state())
    later = failure(lambda: comm.barrier(), "the same cause from a later operation")
    expect(core(text) in later, f"the same cause as {core(text)!r}", later)
    expect(core(text) in comm.error(), f"comm.error() to be {core(text)!r}", comm.error())
    comm.finalize()
    comm.abort()
    comm.finalize()


def expect_works(comm: torchcomms.TorchComm) -> None:
    """The communicator carries collectives and messages, and they are right."""
    import torch

    rank, size = comm.get_rank(), comm.get_size()
    tensor = torch.full((5,), float(rank + 1))
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    expect(tensor.tolist() == [size * (size + 1) / 2] * 5, "the sum of the ranks", tensor)
    received = torch.zeros(3)
    work = comm.recv(received, (rank - 1) % size, async_op=True)
    comm.send(torch.full((3,), float(rank)), (rank + 1) % size)
    work.wait()
    expect(received.tolist() == [(rank - 1) % size] * 3, "the rank before", received)


def joined(me: Rank, size: int, name: str = "base", timeout: float = FAR) -> torchcomms.TorchComm:
    """A communicator of the first `size` processes of a job that may have more."""
    import os

    os.environ["WORLD_SIZE"] = str(size)
    if "LOCAL_WORLD_SIZE" in os.environ:
        os.environ["LOCAL_WORLD_SIZE"] = str(size)
    return Rank(me.rank, size, me.folder).comm(name, timeout=timeout)


def split(base: torchcomms.TorchComm, name: str) -> torchcomms.TorchComm:
    """A communicator of the same ranks, so that what happens to it leaves the base alone."""
    comm = base.split(list(range(base.get_size())), name)
    assert comm is not None
    return comm


def since(start: float) -> float:
    return time.monotonic() - start
