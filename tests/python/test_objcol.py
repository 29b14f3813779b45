"""Object collectives: what arrives, and that a fault of one rank is told to all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from ranks import Rank

import torchcomms
from torchcomms import objcol

OBJECTS: list[Any] = ["text", {"a": [1, 2.5, None]}, b"\0" * 70000, torch.arange(5), ""]


class Opaque:
    """A class of the user's, which only weights_only=False accepts."""

    def __init__(self, value: int) -> None:
        self.value = value


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("made of glass")


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return bool(left == right)


def what_arrives(me: Rank) -> None:
    comm = me.comm()
    mine = OBJECTS[me.rank]
    gathered: list[Any] = [None] * me.size
    objcol.all_gather_object(comm, gathered, mine)
    assert all(map(same, gathered, OBJECTS))
    for root in range(me.size):
        gathered = [None] * me.size
        objcol.gather_object(comm, mine, root, gathered if me.rank == root else None)
        if me.rank == root:
            assert all(map(same, gathered, OBJECTS))
        shared = list(OBJECTS) if me.rank == root else [None] * len(OBJECTS)
        objcol.broadcast_object_list(comm, shared, root)
        assert all(map(same, shared, OBJECTS))
        objcol.broadcast_object_list(comm, [], root)
        got = ["old"]
        parts = OBJECTS[: me.size] if me.rank == root else None
        objcol.scatter_object_list(comm, root, got, parts)
        assert same(got[0], mine)
    if me.rank == 0:
        objcol.send_object_list(comm, OBJECTS, 1)
        objcol.send_object_list(comm, [], 1)
    elif me.rank == 1:
        got = [None] * len(OBJECTS)
        objcol.recv_object_list(comm, got, 0)
        assert all(map(same, got, OBJECTS))
        objcol.recv_object_list(comm, [], 0)
    comm.finalize()


def test_objects_arrive(job):
    job(what_arrives, 3)


def test_a_group_of_one_keeps_its_own(job):
    def alone(me: Rank) -> None:
        comm = me.comm()
        got: list[Any] = [None]
        objcol.all_gather_object(comm, got, {1: 2})
        assert got == [{1: 2}]
        objcol.scatter_object_list(comm, 0, got, ["x"])
        assert got == ["x"]
        comm.finalize()

    job(alone, 1)


def faults(me: Rank) -> None:
    comm = me.comm()
    second = me.rank == 1
    glass = Unpicklable() if second else "fine"

    def told(kind: type[Exception], words: str, call: Any, *arguments: Any) -> None:
        with pytest.raises(kind, match=words) as caught:
            call(comm, *arguments)
        if second and "glass" in words:
            assert isinstance(caught.value.__cause__, ValueError)

    reason = "rank 1 cannot pickle its object.*Unpicklable.*made of glass"
    told(RuntimeError, reason, objcol.all_gather_object, [None] * 2, glass)
    told(RuntimeError, reason, objcol.gather_object, glass, 0, [None] * 2)
    told(RuntimeError, reason, objcol.broadcast_object_list, ["a", glass], 1)
    told(RuntimeError, reason, objcol.scatter_object_list, 1, [None], ["a", glass])
    if second:
        told(RuntimeError, reason, objcol.send_object_list, ["a", glass], 0)
    else:
        told(RuntimeError, reason, objcol.recv_object_list, ["a", None], 1)

    short = [None] * (1 if second else 2)
    told(ValueError, "rank 1 has 1 entries.*expected 2", objcol.all_gather_object, short, 1)
    told(ValueError, "rank 1 has 1 entries.*expected 2", objcol.gather_object, 1, 1, short)
    told(ValueError, "rank 1 has no object_gather_list", objcol.gather_object, 1, 1)
    told(ValueError, r"\[2, 1\] entries", objcol.broadcast_object_list, short, 0)
    told(ValueError, "rank 1 has 1 entries", objcol.scatter_object_list, 1, [None], short)
    told(ValueError, "rank 1 has no entry", objcol.scatter_object_list, 0, short[1:], [1, 2])
    told(ValueError, "root 2 is out of range", objcol.broadcast_object_list, [1], 2)
    if second:
        objcol.send_object_list(comm, [1, 2, 3], 0)
    else:
        told(ValueError, "has 2 entries: expected 3", objcol.recv_object_list, [0, 0], 1)

    other: list[Any] = [None] * 2
    told(
        RuntimeError,
        "cannot unpickle the object of rank 0.*weights_only=False",
        objcol.all_gather_object,
        other,
        Opaque(me.rank),
    )
    objcol.all_gather_object(comm, other, Opaque(me.rank), weights_only=False)
    assert [each.value for each in other] == [0, 1]
    comm.finalize()


def test_a_fault_of_one_rank_is_told_to_all(job):
    job(faults, 2)


def test_lengths_are_not_cut_to_32_bits(monkeypatch):
    """The table that ranks exchange holds 64-bit lengths; no object of 4 GB is needed to see it."""

    class Loopback:
        def get_rank(self) -> int:
            return 0

        def get_size(self) -> int:
            return 1

        def get_device(self) -> torch.device:
            return torch.device("cpu")

        def get_timeout(self) -> Any:
            return timedelta(seconds=1)

        def all_gather_single(self, output: Any, input: Any, **_options: Any) -> None:
            output.copy_(input)

    class Long(bytes):
        def __len__(self) -> int:
            return 5 * 2**30

    call = objcol._Call("test", Loopback(), None, None, True)  # type: ignore[arg-type]
    part = objcol._Part(objcol._State.READY, [Long()])
    assert call.agree(part, columns=1) == [[1, 5 * 2**30]]


class Telling(torchcomms.TorchCommBackend):
    """Keeps what its sends were asked for."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, tensor: Any, dst: int, async_op: bool, options: Any) -> None:
        self.told.append((options.hints, options.timeout))


def steps(me: Rank) -> None:
    torchcomms.register_backend("telling", Telling)
    comm = torchcomms.new_comm("telling", "cpu", store=me.store(), name="telling")
    limit = timedelta(seconds=30)
    objcol.send_object_list(comm, ["text"], 0, timeout=limit, hints={"colour": "red"})
    told = comm.get_backend_impl().told
    assert len(told) == 3
    assert all(hints == {"colour": "red"} for hints, _ in told)
    assert all(timedelta(0) < left <= limit for _, left in told)
    comm.finalize()


def test_every_step_has_the_hints_and_what_is_left_of_the_time_out(job):
    job(steps, 1)
