"""Backends written in Python: the communicator and torch.distributed over them."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms
from torchcomms import ReduceOp, TorchCommBackend


class OverStock(TorchCommBackend):
    """Over torch's own gloo, and with a few words about what it was asked."""

    def init(self, device, name, options):
        super().init(device, name, options)
        assert device.type == "cpu"
        self.name = name
        self.calls = []
        self.group = dist.ProcessGroupGloo(
            options.store, options.rank, options.size, options.timeout
        )

    def _done(self, work, async_op):
        if async_op:
            return work
        work.wait()
        return None

    def all_reduce(self, tensor, op, async_op, options):
        self.calls.append((options.timeout, options.hints))
        assert op == ReduceOp.SUM
        return self._done(self.group.allreduce([tensor]), async_op)

    def broadcast(self, tensor, root, async_op, options):
        return self._done(self.group.broadcast(tensor, root), async_op)

    def all_gather_single(self, output, input, async_op, options):
        return self._done(self.group._allgather_base(output, input), async_op)

    def barrier(self, async_op, options):
        future = self.group.barrier().get_future()
        if async_op:
            return future
        future.wait()
        return None

    def send(self, tensor, dst, async_op, options):
        return self._done(self.group.send([tensor], dst, 0), async_op)

    def recv(self, tensor, src, async_op, options):
        return self._done(self.group.recv([tensor], src, 0), async_op)

    def reduce(self, tensor, root, op, async_op, options):
        return "no work"

    def split(self, ranks, name, options):
        if self.rank not in ranks:
            return None
        part = OverStock()
        part.rank, part.size, part.name = ranks.index(self.rank), len(ranks), name
        return part

    def finalize(self):
        self.calls.append("finalize")

    def abort(self):
        self.calls.append("abort")


def test_what_can_be_registered():
    torchcomms.register_backend("overstock", OverStock)
    torchcomms.register_backend("OverStock", OverStock)  # again is fine
    assert torchcomms._comms._is_backend_registered("overstock")
    assert not torchcomms.is_backend_built("overstock")
    for taken in ("gloo", "NCCL", "ncclx"):
        with pytest.raises(ValueError, match="is taken"):
            torchcomms.register_backend(taken, OverStock)
    with pytest.raises(TypeError, match="subclass"):
        torchcomms.register_backend("other", object)
    for unusable in ("cpu:other", "a,b", " other", "other one", ""):
        with pytest.raises(ValueError, match="name must be"):
            torchcomms.register_backend(unusable, OverStock)
    with pytest.raises(TypeError, match="devices must be a tuple of str, got 'cpu'"):
        torchcomms.register_backend("other", type("Text", (OverStock,), {"devices": "cpu"}))
    with pytest.raises(ValueError, match="serves cpu"):
        torchcomms.new_comm("overstock", "cuda")


class Nowhere(TorchCommBackend):
    """Does not know its rank."""

    def get_rank(self):
        return "first"


def of_the_engine_alone(me: Rank) -> None:
    """What a backend in Python cannot be asked for says so."""
    torchcomms.register_backend("nowhere", Nowhere)
    torchcomms.register_backend("plain", TorchCommBackend)
    made = {"name": "c", "store": me.store()}
    with pytest.raises(ValueError, match=r"Nowhere: get_rank.*must be a rank.*'first' and 1"):
        torchcomms.new_comm("nowhere", "cpu", **made)
    with pytest.raises(NotImplementedError, match=r"enable_reconfigure.*gloo or nccl"):
        torchcomms.new_comm("plain", "cpu", enable_reconfigure=True, **made)
    comm = torchcomms.new_comm("plain", "cpu", **made)
    for call in (
        comm.info,
        comm.get_init_handle,
        lambda: comm.reconfigure(1, ["a"]),
        comm.suspend,
        comm.resume,
        comm.memory_stats,
        comm.get_nccl_comm_ptr,
    ):
        with pytest.raises(NotImplementedError, match=r"backend plain is written.*use gloo or nc"):
            call()
    comm.finalize()


def test_what_only_the_engine_can_do_is_refused_by_name(job):
    job(of_the_engine_alone, 1)


def directly(me: Rank) -> None:
    torchcomms.register_backend("overstock", OverStock)
    comm = torchcomms.new_comm(
        "overstock", "cpu", name="c", store=me.store(), timeout=timedelta(seconds=20)
    )
    backend = comm.get_backend_impl()
    assert isinstance(backend, OverStock)
    assert (comm.get_rank(), comm.get_size(), comm.get_backend()) == (me.rank, 2, "overstock")
    assert (comm.state(), comm.get_options().timeout) == ("ready", timedelta(seconds=20))
    names = []
    hook = comm.register_pre_hook(lambda name, op_id, args: names.append(name.name))
    x = torch.full((4,), float(me.rank))
    comm.all_reduce(x, ReduceOp.SUM)
    work = comm.all_reduce(x, ReduceOp.SUM, async_op=True, hints={"a": "b"})
    work.wait()
    assert work.is_completed()
    assert work.status == torchcomms.WorkStatus.COMPLETED
    assert x.tolist() == [2.0] * 4
    assert backend.calls == [(timedelta(seconds=20), {}), (timedelta(seconds=20), {"a": "b"})]
    comm.barrier()
    comm.barrier(async_op=True).wait()
    assert names == ["all_reduce"] * 2 + ["barrier"] * 2
    hook.remove()
    batch = comm.batch_op_create()
    got = torch.zeros(4)
    batch.send(x + me.rank, 1 - me.rank)
    batch.recv(got, 1 - me.rank)
    batch.issue(async_op=True).wait()
    assert got.tolist() == [3.0 - me.rank] * 4
    with pytest.raises(NotImplementedError, match="OverStock does not support gather_single"):
        comm.gather_single(x, x, 0)
    with pytest.raises(TypeError, match="must return None, a work or a future"):
        comm.reduce(x, 0, ReduceOp.SUM)
    part = comm.split([1], "one")
    assert (part is None) == (me.rank == 0)
    if part is not None:
        assert (part.get_rank(), part.get_size(), part.get_name()) == (0, 1, "one")
    comm.abort()
    comm.abort()
    assert comm.is_aborted()
    with pytest.raises(dist.DistBackendError, match="aborted"):
        comm.barrier()
    comm.finalize()
    comm.finalize()
    assert backend.calls[2:] == ["abort", "finalize"]


class Versioned(TorchCommBackend):
    version = "2.5"


class Wrong(TorchCommBackend):
    version = (2, 5)


def versions(me: Rank) -> None:
    """A backend's own version, else its package's, else none that is known."""
    for name, cls in (("versioned", Versioned), ("wrong", Wrong), ("bare", Nowhere)):
        torchcomms.register_backend(name, cls)
    Nowhere.get_rank = TorchCommBackend.get_rank
    made = {"store": me.store()}
    assert torchcomms.new_comm("versioned", "cpu", **made).get_backend_version() == "2.5"
    with pytest.raises(TypeError, match=r"Wrong.version must be a str, got \(2, 5\)"):
        torchcomms.new_comm("wrong", "cpu", **made).get_backend_version()
    bare = torchcomms.new_comm("bare", "cpu", **made)
    assert bare.get_backend_version() == "unknown"
    sys.modules[Nowhere.__module__].__version__ = "3.1"
    assert bare.get_backend_version() == "3.1"
    engine = me.comm("engine")
    assert engine.get_backend_version() == torchcomms.engine_info()["engine"]
    engine.finalize()


def test_the_version_of_a_backend(job):
    job(versions, 1)


def through_torch(me: Rank) -> None:
    torchcomms.register_backend("overstock", OverStock)
    dist.config.use_torchcomms = True
    dist.init_process_group(
        "cpu:overstock",
        init_method=f"file://{me.folder}/world",
        rank=me.rank,
        world_size=me.size,
        timeout=timedelta(seconds=20),
    )
    (group,) = torchcomms.engine_info()["groups"]
    assert (group["served_by"], group["backend"]) == ("python", "overstock")
    x = torch.full((4,), float(me.rank))
    dist.all_reduce(x)
    assert x.tolist() == [1.0] * 4
    dist.all_reduce(x, async_op=True).get_future().wait()
    dist.broadcast(x, 0)
    dist.barrier()
    out = torch.empty(8)
    dist.all_gather_single(out, x) if hasattr(dist, "all_gather_single") else (
        dist.all_gather_into_tensor(out, x)
    )
    assert out.tolist() == [2.0] * 8
    wrapper = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    backend = wrapper.get_comm().get_backend_impl()
    dist.destroy_process_group()
    assert backend.calls[-1] == "finalize"


def both(me: Rank) -> None:
    directly(me)
    through_torch(me)


def test_communicator_and_process_group(job):
    job(both, 2)


def test_a_backend_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[torchcomms.backends]\nelsewhere = other_backend:B\n")
    (tmp_path / "other_backend.py").write_text(
        "from torchcomms import TorchCommBackend\nclass B(TorchCommBackend):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    torchcomms._backends._plugins.cache_clear()
    try:
        assert torchcomms.built_backends() == ["elsewhere", "gloo", "nccl"]
        assert torchcomms.is_backend_built("elsewhere")
        for variable, value in (("TORCHCOMM_RANK", "0"), ("TORCHCOMM_SIZE", "1")):
            monkeypatch.setitem(os.environ, variable, value)
        comm = torchcomms.new_comm("elsewhere", "cpu", store=dist.HashStore())
        assert comm.get_backend() == "elsewhere"
        assert comm.get_backend_version() == "1.0"
        with pytest.raises(NotImplementedError, match="B does not support barrier"):
            comm.barrier()
    finally:
        torchcomms._backends._plugins.cache_clear()
