"""Whether machines of one place are neighbours, by the bytes that pass between hosts.

One rank of a job that run.sh started on four hosts (`run.sh -s racks`). Hosts stand in two racks in
turn, so that as they are numbered every neighbour is in the other rack. The job runs twice: with
the racks named, and without. What a rank was sent is read off its connections, by the kernel's
count. Must not know how the engine comes to its order.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

RANK, SIZE, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
HOST, HOSTS = int(os.environ["GROUP_RANK"]), SIZE // LOCAL
# Where bytes_received lies in the kernel's tcp_info.
BYTES_RECEIVED = 128
# Large enough for a ring, and for the halving of lengths.
LARGE, MIDDLE = 1 << 20, 1 << 15


def connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, each for as long as it is looked at."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue  # the listing's own, or no socket
        with found:
            if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM:
                yield found


def received() -> Counter[int]:
    """Bytes that came so far, by the host they came from. Hosts have their numbers as addresses."""
    came: Counter[int] = Counter()
    for connection in connections():
        try:
            peer = connection.getpeername()[0]
        except OSError:
            continue  # it listens
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
        came[int(peer.rpartition(".")[2]) - 1] += struct.unpack_from("=Q", info, BYTES_RECEIVED)[0]
    return came


def rack(host: int) -> str:
    return "ab"[host % 2]


class Job:
    """A communicator, and who sent how much to whom in an operation."""

    def __init__(self, name: str) -> None:
        import torch

        import torchcomms

        self.torch, self.sum = torch, torchcomms.ReduceOp.SUM
        self.comm = torchcomms.new_comm("gloo", "cpu", name=name, timeout=timedelta(seconds=60))

    def sent(self, operation: Callable[[], bool]) -> dict[tuple[int, int], int]:
        """Bytes of `operation` from host to host; raises where its result is wrong on a rank."""
        # Nobody begins, or goes on, before everybody has counted.
        self.comm.barrier()
        before = received()
        self.comm.barrier()
        right = operation()
        self.comm.barrier()
        came = received()
        self.comm.barrier()
        mine = [came[host] - before[host] for host in range(HOSTS)] + [int(right)]
        rows = self.torch.empty(SIZE, HOSTS + 1, dtype=self.torch.int64)
        self.comm.all_gather_single(rows, self.torch.tensor([mine]))
        if not rows[:, HOSTS].all():
            raise AssertionError(f"wrong results: by rank {rows[:, HOSTS].tolist()}")
        passed: Counter[tuple[int, int]] = Counter()
        for rank, row in enumerate(rows.tolist()):
            for host in range(HOSTS):
                passed[host, rank // LOCAL] += row[host]
        return passed

    def reduction(self, count: int) -> Callable[[], bool]:
        def reduce() -> bool:
            tensor = self.torch.arange(count) + RANK
            self.comm.all_reduce(tensor, self.sum)
            expected = self.torch.arange(count) * SIZE + SIZE * (SIZE - 1) // 2
            return bool((tensor == expected).all())

        return reduce

    def distribution(self) -> bool:
        tensor = self.torch.arange(LARGE) if RANK == 0 else self.torch.zeros(LARGE).long()
        self.comm.broadcast(tensor, 0)
        return bool((tensor == self.torch.arange(LARGE)).all())


def share(passed: dict[tuple[int, int], int], belongs: Callable[[int, int], bool]) -> float:
    """What part of the bytes went along the pairs of hosts for which `belongs` holds."""
    return sum(n for pair, n in passed.items() if belongs(*pair)) / sum(passed.values())


def crosses(one: int, other: int) -> bool:
    return rack(one) != rack(other)


def run(named: bool) -> None:
    """Runs the job: hosts of a named rack stand together, others in the order of their ranks."""
    if named:
        os.environ["FERROCOMM_LOCATION"] = f"hall/rack {rack(HOST)}"
    order = [0, 2, 1, 3] if named else [0, 1, 2, 3]
    follows = set(zip(order, order[1:] + order[:1], strict=True))
    job = Job("racks" if named else "plain")
    # the first operation also connects ranks
    job.reduction(LARGE)()
    ring = job.sent(job.reduction(LARGE))
    halving = job.sent(job.reduction(MIDDLE))
    chain = job.sent(job.distribution) if LOCAL > 1 else None
    job.comm.finalize()
    shares = {
        "ring": (share(ring, lambda a, b: (a, b) in follows), 0.95, 1.0),
        "ring between racks": (share(ring, crosses), *((0.45, 0.55) if named else (0.95, 1.0))),
        # half of the bytes go to the neighbour, a quarter to the next but one
        "halving between racks": (share(halving, crosses), *((0.3, 0.37) if named else (0.6, 0.7))),
    }
    if chain is not None:  # hosts of one rank have all from the root itself
        shares |= {
            "chain": (share(chain, lambda a, b: (a, b) in follows), 0.95, 1.0),
            "chain between racks": (
                share(chain, crosses),
                *((0.3, 0.37) if named else (0.95, 1.0)),
            ),
        }
    wrong = {what: found for what, found in shares.items() if not found[1] <= found[0] <= found[2]}
    print(
        f"{'racks named' if named else 'no racks'}: "
        + ", ".join(f"{what} {found[0]:.2f}" for what, found in shares.items())
    )
    if wrong:
        raise AssertionError(f"share, least and most expected: {wrong}")


def main() -> int:
    passed = failed = 0
    port = int(os.environ["MASTER_PORT"])
    for named in (True, False):
        # An engine reads its place once, and each job has a store of its own.
        os.environ["MASTER_PORT"] = str(port + int(named))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(named)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        succeeded = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        passed, failed = passed + succeeded, failed + (not succeeded)
    print(f"racks: {passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
