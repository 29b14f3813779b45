"""Where rank, size, address, port and time-out come from, and what is said when they are wrong."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank
from torch.distributed import config

import torchcomms
from torchcomms import _factory, _ranks

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "pals": ("PALS_RANKID", "PMI_SIZE"),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("method", LAUNCHERS)
def test_each_launcher_is_understood(method):
    rank, size = LAUNCHERS[method]
    env = {rank: "2", size: "5"}
    assert _ranks.rank_and_size(env) == (2, 5)
    assert _ranks.rank_and_size(env | {_ranks.METHOD_VARIABLE: method}) == (2, 5)


def test_pmi_alone_is_understood():
    assert _ranks.rank_and_size({"PMI_RANK": "1", "PMI_SIZE": "2"}) == (1, 2)


def test_the_method_chooses_and_own_variables_win():
    both = {"RANK": "0", "WORLD_SIZE": "9", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert _ranks.rank_and_size(both) == (0, 9)
    assert _ranks.rank_and_size(both | {_ranks.METHOD_VARIABLE: "mpi"}) == (1, 2)
    own = {"TORCHCOMM_RANK": "3", "TORCHCOMM_SIZE": "4"}
    assert _ranks.rank_and_size(both | own) == (3, 4)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, ("TORCHCOMM_RANK", "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK")),
        ({"RANK": "0"}, ("WORLD_SIZE is not set",)),
        ({"WORLD_SIZE": "2"}, ("RANK is not set",)),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, ("RANK='zero'",)),
        ({"RANK": "0", "WORLD_SIZE": ""}, ("WORLD_SIZE=''",)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ("RANK=2", "WORLD_SIZE=2")),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ("RANK='-1'",)),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ("WORLD_SIZE='0'",)),
        ({"TORCHCOMM_RANK": "0"}, ("TORCHCOMM_SIZE is not set",)),
        ({_ranks.METHOD_VARIABLE: "slurm"}, (_ranks.METHOD_VARIABLE, "'slurm'", "pals")),
        ({"RANK": "0", "WORLD_SIZE": "2", _ranks.METHOD_VARIABLE: "mpi"}, ("PMI_RANK",)),
    ],
)
def test_what_is_missing_or_wrong_is_named(env, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        _ranks.rank_and_size(env)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MASTER_ADDR", None, "MASTER_ADDR=''"),
        ("MASTER_PORT", None, "MASTER_PORT is not set"),
        ("MASTER_PORT", "high", "MASTER_PORT='high'"),
        ("MASTER_PORT", "70000", "MASTER_PORT='70000'"),
        ("TORCHCOMM_TIMEOUT_SECONDS", "soon", "TORCHCOMM_TIMEOUT_SECONDS='soon'"),
        ("TORCHCOMM_TIMEOUT_SECONDS", "-1", "TORCHCOMM_TIMEOUT_SECONDS='-1'"),
    ],
)
def test_address_port_and_timeout_are_checked(monkeypatch, variable, value, words):
    settings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name in ("TORCHCOMM_RANK", "TORCHCOMM_SIZE", "TORCHCOMM_TIMEOUT_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    for name, setting in settings.items():
        monkeypatch.setenv(name, setting)
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=words):
        torchcomms.new_comm("gloo", "cpu")


def without_a_store(me: Rank) -> None:
    """Unnamed communicators on one store of the process, beside torch's own group on that port."""
    made = [torchcomms.new_comm("gloo", "cpu", timeout=timedelta(seconds=20)) for _ in range(3)]
    assert len({comm.get_name() for comm in made}) == 3
    config.use_torchcomms = False
    dist.init_process_group("gloo")
    for comm in made:
        tensor = torch.ones(1)
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
        dist.all_reduce(tensor)
        assert tensor.item() == me.size**2
        comm.finalize()
    again = torchcomms.new_comm("gloo", "cpu", name="again", timeout=timedelta(seconds=20))
    again.finalize()
    again = torchcomms.new_comm("gloo", "cpu", name="again", timeout=timedelta(seconds=20))
    again.barrier()
    again.finalize()
    dist.destroy_process_group()


def test_one_port_serves_everybody(job):
    job(without_a_store, 2, env={"MASTER_PORT": str(free_port())})


def torch_first_then_comm(me: Rank) -> None:
    config.use_torchcomms = True
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    comm = torchcomms.new_comm("gloo", "cpu", timeout=timedelta(seconds=20))
    tensor = torch.ones(1)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    dist.all_reduce(tensor)
    assert tensor.item() == me.size**2
    comm.finalize()
    dist.destroy_process_group()


def test_the_port_is_shared_with_a_group_made_before(job):
    job(torch_first_then_comm, 2, env={"MASTER_PORT": str(free_port())})


def nobody_serves(_me: Rank) -> None:
    os.environ.update(RANK="1", WORLD_SIZE="2")
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 cannot reach.*MASTER_PORT=\d+"):
        torchcomms.new_comm("gloo", "cpu", timeout=timedelta(seconds=1))


def test_an_unreachable_store_is_named(job):
    job(nobody_serves, 1, env={"MASTER_PORT": str(free_port())})


def port_is_taken(me: Rank) -> None:
    with socket.socket() as squatter:
        squatter.bind(("", int(os.environ["MASTER_PORT"])))
        squatter.listen()
        with pytest.raises(RuntimeError, match=r"cannot serve the store.*MASTER_PORT=\d+"):
            torchcomms.new_comm("gloo", "cpu", timeout=timedelta(seconds=2))


def test_a_taken_port_is_named(job):
    job(port_is_taken, 1, env={"MASTER_PORT": str(free_port())})


def timeouts(me: Rank) -> None:
    comm = torchcomms.new_comm("gloo", "cpu", store=me.store("own"), name="own")
    assert comm.get_timeout() == timedelta(seconds=7.5)
    comm.finalize()
    del os.environ["TORCHCOMM_TIMEOUT_SECONDS"]
    # a store's time-out is the caller's own affair when the caller made the call
    store = me.store("default")
    store.set_timeout(timedelta(seconds=3))
    comm = torchcomms.new_comm("gloo", "cpu", store=store, name="default")
    assert comm.get_timeout() == _factory.DEFAULT_TIMEOUT
    comm.finalize()
    # torch's groups have the limits that were asked for, whoever made the store
    config.use_torchcomms = True
    store = me.store("world")
    store.set_timeout(timedelta(seconds=3))
    dist.init_process_group(
        "gloo", store=store, rank=me.rank, world_size=me.size, timeout=timedelta(seconds=33)
    )
    groups = {
        33.0: dist.group.WORLD,
        44.0: dist.new_group(timeout=timedelta(seconds=44)),
        dist.default_pg_timeout.total_seconds(): dist.new_group(),
    }
    for seconds, group in groups.items():
        comm = group._get_backend(torch.device("cpu")).get_comm()
        assert comm.get_timeout() == timedelta(seconds=seconds)
    dist.destroy_process_group()


def test_timeouts_come_from_whoever_asked(job):
    job(timeouts, 1, env={"TORCHCOMM_TIMEOUT_SECONDS": "7.5"})
