"""Hooks of a communicator: what they are told, in which order, and that an exception of one is the
caller's alone."""

from __future__ import annotations

import gc
import io
import os
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms
from torchcomms import OpName, ReduceOp
from torchcomms.hooks import NanCheckHook, clog

SUM = ReduceOp.SUM


class Notes:
    """Notes every call of a communicator's hooks."""

    def __init__(self, comm: torchcomms.TorchComm) -> None:
        self.before: list[tuple[OpName, int, object]] = []
        self.after: list[tuple[int, object]] = []
        self.handles = [
            comm.register_pre_hook(lambda *told: self.before.append(told)),
            comm.register_post_hook(lambda *told: self.after.append(told)),
        ]

    def take(self) -> list[tuple[OpName, object, object]]:
        """Name, arguments and result of the operations since, which both hooks agree about."""
        told = list(zip(self.before, self.after, strict=True))
        for (name, op_id, args), (same_id, result) in told:
            assert op_id == same_id
            assert args.op_name is name is result.op_name
        taken = [(name, args, result) for (name, _, args), (_, result) in told]
        self.before.clear()
        self.after.clear()
        return taken

    def one(self, name: OpName) -> tuple[object, object]:
        (told,) = self.take()
        assert told[0] is name
        return told[1:]


def every_operation(me: Rank) -> None:
    comm = me.comm()
    notes = Notes(comm)
    n, me_first = comm.get_size(), comm.get_rank() == 0
    t = torch.ones(4)
    parts = [torch.ones(2) for _ in range(n)]
    other = 1 - comm.get_rank()

    def told(name: str, *call: object, **expected: object) -> object:
        """Calls the operation, synchronous and asynchronous; what the hooks were told of it."""
        for async_op in (False, True):
            work = getattr(comm, name)(*call, async_op=async_op)
            args, result = notes.one(OpName[name])
            assert type(args).__name__ == f"{camel(name)}PreHookArgs"
            assert type(result).__name__ == f"{camel(name)}PostHookArgs"
            assert args.async_op is async_op
            result.work.wait()
            work.wait()
            for field, value in expected.items():
                got = getattr(args, field)
                if isinstance(value, torch.Tensor):
                    assert got is value or got.data_ptr() == value.data_ptr(), (name, field)
                elif isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
                    assert [x.data_ptr() for x in got] == [x.data_ptr() for x in value]
                else:
                    assert got == value, (name, field, got)
        return args

    told("broadcast", t, 1, tensor=t, root=1)
    assert told("all_reduce", t, SUM, tensor=t).op == SUM
    told("reduce", t, 1, ReduceOp.MAX, tensor=t, root=1, op=ReduceOp.MAX)
    own = torch.ones(2)
    told("all_gather", parts, own, output=parts, input=own)
    told("all_gather_v", parts, own, output=parts, input=own)
    whole = torch.ones(2 * n)
    told("all_gather_single", whole, own, output=whole, input=own)
    told("reduce_scatter", own, parts, SUM, output=own, input=parts, op=SUM)
    told("reduce_scatter_v", own, parts, SUM, output=own, input=parts)
    told("reduce_scatter_single", own, whole, SUM, output=own, input=whole)
    others = [torch.ones(2) for _ in range(n)]
    told("all_to_all", others, parts, output=others, input=parts)
    given = torch.ones(2 * n)
    told("all_to_all_single", whole, given, output=whole, input=given)
    told("all_to_all_v_single", whole, given, [2] * n, [2] * n, output_split_sizes=[2] * n)
    told("scatter", own, parts if me_first else [], 0, output=own, root=0)
    told("gather", parts if me_first else [], own, 0, input=own, root=0)
    told("gather_single", whole, own, 0, input=own, root=0)
    told("barrier")
    if me_first:
        told("send", t, other, tensor=t, peer=other)
    else:
        told("recv", t, other, tensor=t, peer=other)

    part = comm.split([1, 0], "part")
    args, result = notes.one(OpName.split)
    assert (args.ranks, args.name) == ([1, 0], "part")
    assert result.new_comm is part

    # a batch is told as the sends and receives it is made of
    batch = comm.batch_op_create()
    batch.add(torchcomms.P2POp(torchcomms.TorchComm.send, t, other))
    batch.recv(own.clone().resize_(4), other)
    batch.issue(options=torchcomms.BatchP2POptions(timeout=None, hints={"a": "b"}))
    (one, two) = notes.take()
    assert (one[0], two[0]) == (OpName.send, OpName.recv)
    assert one[1].peer == two[1].peer == other
    assert one[2].work.is_completed()

    handle = comm.all_gather_p_init(whole)
    comm.all_gather_p_exec(handle, own)
    assert notes.one(OpName.all_gather_single)[0].output.data_ptr() == whole.data_ptr()

    # c10d's calls are the same operations
    dist_backend = torchcomms._comms._BackendWrapper(comm)
    dist_backend.allreduce([t]).wait()
    assert notes.one(OpName.all_reduce)[0].async_op is True
    dist_backend.allreduce_coalesced([t, own]).wait()
    assert [name for name, *_ in notes.take()] == [OpName.all_reduce] * 2

    for registered in notes.handles:
        registered.remove()
        registered.remove()
    comm.barrier()
    assert not notes.before
    ended = Notes(comm)
    comm.finalize()
    ended.one(OpName.finalize)
    comm.finalize()
    assert not ended.before, "a finalized communicator has no hooks"


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def exceptions(me: Rank) -> None:
    comm = me.comm()
    t = torch.full((4,), float(me.rank))

    def refuse(name: OpName, op_id: int, args: object) -> None:
        raise KeyError("refused by the hook")

    def complain(op_id: int, args: object) -> None:
        raise KeyError("too late")

    backend = torchcomms._comms._BackendWrapper(comm)
    calls = [
        lambda: comm.all_reduce(t, SUM),
        lambda: comm.all_reduce(t, SUM, async_op=True),
        lambda: comm.split([0, 1], "no"),
        lambda: backend.allreduce([t]),
    ]
    before = comm.get_sequence()
    with comm.register_pre_hook(refuse):
        for call in calls:
            with pytest.raises(KeyError, match="refused by the hook"):
                call()
        with pytest.raises(KeyError, match="refused"):
            comm.finalize()
        batch = comm.batch_op_create()
        batch.send(t, 1 - me.rank)
        batch.recv(torch.empty(4), 1 - me.rank)
        with pytest.raises(KeyError, match="refused"):
            batch.issue()
    assert comm.get_sequence() == before, "nothing was issued"
    assert comm.state() == "ready"
    batch.issue()  # still holds what was added

    with comm.register_post_hook(complain):
        with pytest.raises(KeyError, match="too late"):
            comm.all_reduce(t, SUM)
        assert t.tolist() == [1.0] * 4, "it was issued, and is over"
        with pytest.raises(KeyError, match="too late"):
            comm.all_reduce(t, SUM, async_op=True)
    comm.barrier()
    assert t.tolist() == [2.0] * 4
    comm.finalize()


def inside(me: Rank) -> None:
    """Hooks call operations, register and remove, from several threads."""
    comm = me.comm()
    side = me.comm("side")
    seen: list[str] = []
    added: list[torchcomms.RemovableHandle] = []

    def second(name: OpName, op_id: int, args: object) -> None:
        seen.append("second")

    def first(name: OpName, op_id: int, args: object) -> None:
        seen.append("first")
        own.remove()  # itself
        x = torch.ones(1)
        side.all_reduce(x, SUM)
        seen.append(str(x.item()))
        added.append(comm.register_pre_hook(second))

    own = comm.register_pre_hook(first)
    comm.barrier()
    comm.barrier()
    assert seen == ["first", "2.0", "second"]
    added[0].remove()

    # one thread registers and removes while the others call
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            comm.register_pre_hook(lambda *_: None).remove()

    thread = threading.Thread(target=churn)
    thread.start()
    for _ in range(40):
        comm.barrier()
    stop.set()
    thread.join(30)
    assert not thread.is_alive()

    ended = threading.Event()
    work = comm.barrier(async_op=True)
    started = []
    work.register_work_start_hook(lambda: started.append(True))
    work.register_work_end_hook(ended.set)
    work.wait()
    assert started
    assert ended.wait(30)

    # a hook that refers to its communicator does not keep it beyond finalize
    def reads(*_: object) -> None:
        comm.get_rank()

    comm.register_pre_hook(reads)
    alive = weakref.ref(reads)
    del reads
    gc.collect()
    assert alive() is not None
    comm.finalize()
    side.finalize()
    gc.collect()
    assert alive() is None


def nan_and_log(me: Rank) -> None:
    comm = me.comm()
    check = NanCheckHook()
    assert not check.is_enabled()
    check.register_with_comm(comm)
    assert check.is_enabled()
    good, bad = torch.ones(3), torch.tensor([1.0, float("nan"), 2.0])
    with pytest.raises(RuntimeError, match=rf"all_reduce .*comm, rank {me.rank}, tensor 0"):
        comm.all_reduce(bad.clone(), SUM)
    with pytest.raises(RuntimeError, match=r"all_to_all .*tensor 1"):
        comm.all_to_all([torch.empty(3)] * 2, [good, bad])
    with pytest.raises(RuntimeError, match="NaN"):
        torchcomms._comms._BackendWrapper(comm).allreduce([bad.clone()])
    # what is only written may hold anything, and so may what is no float
    comm.broadcast(good if me.rank == 0 else bad.clone(), 0)
    comm.all_gather_single(torch.full((6,), float("nan")), good)
    comm.all_reduce(torch.ones(2, dtype=torch.int32), SUM)
    with pytest.raises(RuntimeError, match="NaN"):
        comm.all_reduce(bad.to(torch.float8_e5m2), ReduceOp.MAX)
    check.unregister()
    assert not check.is_enabled()
    comm.all_reduce(bad.clone(), SUM)

    out = io.StringIO()
    log = clog(output=out, events=["all_reduce", "life_cycle"])
    log.register_with_comm(comm)
    comm.all_reduce(good, SUM)
    comm.barrier()
    comm.split([0, 1], "part").finalize()
    lines = out.getvalue().splitlines()
    assert len(lines) == 4, lines
    assert f"comm rank={me.rank} op_id=" in lines[0]
    assert "all_reduce tensor=float32[3]@cpu op=SUM async_op=False" in lines[0]
    assert lines[1].endswith("all_reduce issued")
    assert "split ranks=[0, 1] name='part'" in lines[2]
    log.unregister()
    comm.barrier()
    path = me.folder / f"log{me.rank}"
    to_file = clog(output=str(path))
    to_file.register_with_comm(comm)
    comm.barrier()
    to_file.unregister()
    assert "barrier async_op=False" in path.read_text()
    with pytest.raises(ValueError, match="unknown event 'nothing'"):
        clog(events=["nothing"])
    comm.finalize()


def all_of_it(me: Rank) -> None:
    for part in (every_operation, exceptions, inside, nan_and_log):
        try:
            part(me)
        except BaseException as error:
            error.add_note(f"in {part.__name__}")
            raise


def test_hooks(job):
    job(all_of_it, 2)


def fails(me: Rank) -> None:
    """Rank 1 dies; rank 0's abort hooks run, on an engine that lives on."""
    comm = me.comm(timeout=30)
    told = threading.Event()
    calls: list[str] = []

    def note() -> None:
        calls.append(threading.current_thread().name)
        told.set()

    def broken() -> None:
        raise KeyError("of the abort hook")

    comm.register_abort_hook(broken)
    comm.register_abort_hook(note)
    comm.barrier()
    me.meet("before")
    if me.rank == 1:
        os._exit(7)
    with pytest.raises(dist.DistBackendError):
        comm.all_reduce(torch.ones(1), SUM)
    assert told.wait(30), "the failure was told"
    assert comm.state() == "failed"
    # abort: the hooks, then the abort, then what a hook raised
    calls.clear()
    with pytest.raises(KeyError, match="of the abort hook"):
        comm.abort()
    assert len(calls) == 1
    assert comm.is_aborted()
    comm.abort()
    assert len(calls) == 1, "aborting again does nothing"
    comm.finalize()


def test_abort_hooks(job):
    job(fails, 2, dies={1})


def c10d_hooks(me: Rank) -> None:
    me.world(timeout=30)
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    assert backend.supports_abort_hooks
    aborted: list[int] = []
    backend.register_abort_hook(1, lambda: aborted.append(1))
    backend.register_abort_hook(1, lambda: aborted.append(2))  # in its place
    backend.register_abort_hook(2, lambda: aborted.append(3))
    backend.unregister_abort_hook(2)
    notes = Notes(torchcomms._comms._BackendWrapper.get_comm(backend))
    dist.all_reduce(torch.ones(2))
    assert notes.one(OpName.all_reduce)
    objects: list[object] = [None] * me.size
    dist.all_gather_object(objects, me.rank)
    assert objects == list(range(me.size))
    assert len(notes.take()) >= 2
    backend.abort()
    assert aborted == [2]


def test_hooks_of_torch_distributed(job):
    job(c10d_hooks, 2)
