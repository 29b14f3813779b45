"""The package has the public names that api.txt lists, with these arguments in this order."""

from __future__ import annotations

import importlib
import inspect
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from ranks import Rank

import torchcomms

LINE = re.compile(r"(?P<path>[\w.]+)(?:\((?P<arguments>[^)]*)\))?$")
LINES = [
    LINE.match(line)
    for line in (Path(__file__).parent / "api.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def find(path: str) -> object:
    """The object of a dotted path, whose first parts name a module."""
    parts = path.split(".")
    module = importlib.import_module(parts[0])
    found: object = module
    for depth, part in enumerate(parts[1:], start=2):
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(".".join(parts[:depth]))
        elif part in getattr(found, "__dataclass_fields__", {}):
            found = found.__dataclass_fields__[part]
        else:
            found = getattr(found, part)
    return found


def arguments(function: object) -> list[str]:
    """Names of the arguments without `self`; the extension's functions say them in a docstring."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        made = function.__init__ if isinstance(function, type) else function
        lines = (made.__doc__ or "").splitlines()
        first = next(line for line in lines if ") ->" in line)
        inner = first[first.index("(") + 1 : first.rindex(") ->")]
        names = re.findall(r"(?:^|, )(\w+): ", inner)
    return [name for name in names if name != "self"]


def test_the_list_can_be_read():
    assert all(LINES)
    assert len(LINES) > 150


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["path"] if line else "unreadable")
def test_a_name_is_there_with_its_arguments(line):
    found = find(line["path"])
    if line["arguments"] is not None:
        expected = [name for name in line["arguments"].split(", ") if name]
        assert arguments(found)[: len(expected)] == expected


def test_what_is_exported_is_there():
    for name in torchcomms.__all__:
        assert getattr(torchcomms, name) is not None
    assert len(set(torchcomms.__all__)) == len(torchcomms.__all__)
    for name in torchcomms._hook_args.__all__:
        assert getattr(torchcomms._comms, name) is getattr(torchcomms, name)


def options_and_the_rest(me: Rank) -> None:
    comm = me.comm(hints={"colour": "blue"})
    options = comm.get_options()
    assert isinstance(options, torchcomms.CommOptions)
    assert (options.timeout, options.name) == (timedelta(seconds=20), "comm")
    assert options.hints["colour"] == "blue"
    assert "timeout=datetime.timedelta(seconds=20)" in repr(options)
    comm.set_hints({"size": "xl"})
    part = comm.split(list(range(me.size)), "part")
    assert part.get_hints() == comm.get_hints() == {"colour": "blue", "size": "xl"}
    own = comm.split(list(range(me.size)), "own", hints={"size": "s"})
    assert own.get_hints() == {"colour": "blue", "size": "s"}
    own.finalize()
    comm.set_timeout(timedelta(seconds=9))
    assert comm.get_options().timeout == timedelta(seconds=9)
    with pytest.raises(TypeError):
        comm.set_hints({"a": 1})
    with pytest.raises(TypeError):
        comm.barrier(hints={"a": 1})
    assert comm.get_backend_impl() is comm.unsafe_get_backend() is comm

    persistent(me, comm, part)
    registration(comm)

    with pytest.raises(ValueError, match="send or recv"):
        torchcomms.P2POp("put", torch.ones(1), 0)
    batch = comm.batch_op_create()
    got = torch.zeros(2)
    batch.add(torchcomms.P2POp("send", torch.full((2,), float(me.rank)), 1 - me.rank))
    batch.add(torchcomms.P2POp(comm.recv, got, 1 - me.rank))
    batch.issue(options=torchcomms.BatchP2POptions(timeout=timedelta(seconds=20)))
    assert got.tolist() == [1.0 - me.rank] * 2
    batch.recv(got, 1 - me.rank)
    with pytest.raises(torch.distributed.DistBackendError, match="time"):
        batch.issue(options=torchcomms.BatchP2POptions(timeout=timedelta(milliseconds=50)))
    part.finalize()
    comm.finalize()


def persistent(me: Rank, comm: torchcomms.TorchComm, part: torchcomms.TorchComm) -> None:
    output = torch.empty(2 * me.size)
    handle = comm.all_gather_p_init(output)
    for round in range(3):
        given = torch.full((2,), float(round + me.rank))
        work = comm.all_gather_p_exec(handle, given, async_op=round % 2 == 0)
        work.wait()
        assert output.tolist() == [float(round + r) for r in range(me.size) for _ in range(2)]
    with pytest.raises(ValueError, match="another communicator"):
        part.all_gather_p_exec(handle, torch.ones(2))
    with pytest.raises(ValueError, match="wrong"):
        comm.all_gather_p_exec(handle, torch.ones(3))
    with pytest.raises(ValueError, match="no equal part"):
        comm.all_gather_p_init(torch.empty(2 * me.size + 1))
    comm.all_gather_p_free(handle)
    with pytest.raises(ValueError, match="was freed"):
        comm.all_gather_p_exec(handle, torch.ones(2))
    with pytest.raises(ValueError, match="was freed"):
        comm.all_gather_p_free(handle)


def registration(comm: torchcomms.TorchComm) -> None:
    for tensor in (torch.ones(8), comm.mem_allocator.empty([8])):
        comm.tensor_register(tensor)
        with pytest.raises(ValueError, match="registered already"):
            comm.tensor_register(tensor)
        comm.all_reduce(tensor, torchcomms.ReduceOp.MAX)
        comm.tensor_deregister(tensor)
        with pytest.raises(ValueError, match="not registered"):
            comm.tensor_deregister(tensor)
    with pytest.raises(ValueError, match="not contiguous"):
        comm.tensor_register(torch.ones(4, 4).t())
    comm.tensor_register(torch.ones(4))  # finalize lets go of it
    for call in (comm.register_mem_pool, comm.deregister_mem_pool):
        with pytest.raises(NotImplementedError, match="CUDA"):
            call(object())


def test_options_persistent_gather_and_registration(job):
    job(options_and_the_rest, 2)
