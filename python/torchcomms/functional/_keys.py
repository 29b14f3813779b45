"""How a compiled graph names communicators and reduce ops: by strings it can hold as constants.

A graph is specialised on the communicators it uses: torch's compiler guards on the very object,
evaluates the methods listed here while it traces, and compiles anew for another communicator. Must
not know which operations there are.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from typing import Any

from torchcomms._comms import ReduceOp, TorchComm

# What a graph may ask a communicator while it is traced; the answers become constants of it.
_CONSTANT_METHODS = (
    "get_rank",
    "get_size",
    "get_name",
    "get_device",
    "get_backend",
    "_functional_key",
)

_lock = threading.Lock()
_numbers = itertools.count(1)
_communicators: weakref.WeakValueDictionary[str, TorchComm] = weakref.WeakValueDictionary()


def communicator(key: str) -> TorchComm:
    """The communicator that `key_of` gave this key.

    Raises:
        RuntimeError: it is gone.
    """
    comm = _communicators.get(key)
    if comm is None:
        raise RuntimeError(
            f"the communicator {key!r} of this graph is gone: keep it as long as the graph is used"
        )
    return comm


def key_of(comm: TorchComm) -> str:
    """The communicator's key in graphs of this process; its name, with a number if that is taken.

    Names alone are not enough: a process may have two communicators of one name.
    """
    key: str | None = getattr(comm, "_key_in_graphs", None)
    if key is not None:
        return key
    with _lock:
        key = comm.get_name()
        while key in _communicators:
            key = f"{comm.get_name()}#{next(_numbers)}"
        _communicators[key] = comm
        comm._key_in_graphs = key  # type: ignore[attr-defined]
    return key


def op_name(op: ReduceOp | Any) -> str:
    """Name of a reduce op given as one of ours, as one of torch's, or by its name.

    Raises:
        NotImplementedError: PREMUL_SUM, whose factor a graph cannot hold.
        ValueError: there is no op of that name.
    """
    if isinstance(op, str):
        name = op.upper()
    elif isinstance(op, ReduceOp):
        name = op._name()  # type: ignore[attr-defined]
    else:
        name = _name(ReduceOp(op))
    if name == "PREMUL_SUM":
        raise NotImplementedError(
            "PREMUL_SUM is not supported here: multiply the tensor by the factor and use SUM"
        )
    if not hasattr(ReduceOp, name):
        raise ValueError(
            f"unknown reduce op {op!r}: expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR"
        )
    return name


def op_named(name: str) -> ReduceOp:
    """The op that `op_name` gave this name."""
    op: ReduceOp = getattr(ReduceOp, name)
    return op


def _name(op: ReduceOp) -> str:
    return str(op.type.name)


@functools.cache
def compile_support() -> bool:
    """Whether the running torch lets a graph use objects of a class of ours (from 2.15 on)."""
    try:
        from torch._library import opaque_object
    except ImportError:
        return False
    return hasattr(opaque_object, "register_custom_class")


@functools.cache
def register() -> None:
    """Tells torch's compiler about communicators and reduce ops; the second time does nothing."""
    communicators: Any = TorchComm
    ops: Any = ReduceOp
    communicators._functional_key = key_of
    ops._name = _name
    if not compile_support():
        return
    from torch._library.opaque_object import MemberType, register_custom_class

    # torch asks for an equality of the class's own. Communicators are equal to themselves alone.
    communicators.__eq__ = lambda self, other: self is other
    communicators.__hash__ = lambda self: id(self)
    communicators.__fx_repr__ = lambda self: (
        f"communicator({key_of(self)!r})",
        {"communicator": communicator},
    )
    ops.__fx_repr__ = lambda self: (f"op_named({_name(self)!r})", {"op_named": op_named})
    register_custom_class(
        TorchComm,
        typ="constant",
        members=dict.fromkeys(_CONSTANT_METHODS, MemberType.USE_REAL),
    )
    register_custom_class(ReduceOp, typ="constant", members={"_name": MemberType.USE_REAL})
