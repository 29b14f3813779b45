"""ATen operators on simulated CUDA tensors.

The simulator launches no kernels. Inside `SimOps()` an operator on CUDA tensors is put on the
current stream as a host function that runs torch's CPU operator on the same memory. So it happens
in stream order and not at the call: whoever does not wait for it sees the old data, and a capture
takes it into its graph.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Operators of these are the ones that launch kernels.
NAMESPACES = ("aten", "fsdp")

# They launch nothing, or only copies.
WITHOUT_KERNELS = {
    "aten::_local_scalar_dense",
    "aten::_pin_memory",
    "aten::detach",
    "aten::detach_",
    "aten::is_pinned",
    "aten::is_same_size",
    "aten::lift_fresh",
    "aten::record_stream",
    "aten::resize_",
    "aten::set_",
}

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tasks:
    """Functions that streams will call, or have called."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.waiting: dict[int, tuple[Callable[[], None], bool]] = {}
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()
        self.entry = HOST_FUNCTION(self.call)
        self.runtime = ctypes.CDLL("libcudart.so.13")

    def call(self, number: int) -> None:
        """What a stream's thread calls."""
        with self.lock:
            function, once = self.waiting[number]
            if once:
                del self.waiting[number]
        try:
            function()
        except BaseException as failure:
            # Raised by the next operator, and at the end; a stream has nobody to raise it to.
            traceback.print_exc(file=sys.stderr)
            self.failures.append(failure)

    def put(self, function: Callable[[], None]) -> None:
        """Puts a function on the current stream. One that is captured stays for ever."""
        self.check()
        number = next(self.numbers)
        stream = torch.cuda.current_stream()
        captured = torch.cuda.is_current_stream_capturing()
        self.waiting[number] = (function, not captured)
        status = self.runtime.cudaLaunchHostFunc(
            ctypes.c_void_p(stream.cuda_stream), self.entry, ctypes.c_void_p(number)
        )
        if status != 0:
            raise RuntimeError(f"cudaLaunchHostFunc: status {status}")

    def check(self) -> None:
        """Raises what a function failed with."""
        if self.failures:
            raise RuntimeError("an operator failed on its stream") from self.failures.pop()


_tasks: Tasks | None = None


def tasks() -> Tasks:
    """The tasks of this process."""
    global _tasks
    if _tasks is None:
        _tasks = Tasks()
    return _tasks


def on_cuda(value: object) -> bool:
    """Whether a value is a CUDA tensor."""
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of the same memory. It keeps nothing alive, as a kernel does not."""
    storage = tensor.untyped_storage()
    length = storage.nbytes()
    if length == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * length).from_address(storage.data_ptr())
    same = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    result = torch.empty(0, dtype=tensor.dtype)
    result.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())
    return result.conj() if tensor.is_conj() else result


def meta(value: Any) -> Any:
    """A tensor's shape without its content."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def on_device(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """Keyword arguments for another device."""
    changed = dict(kwargs)
    if changed.get("device") is not None:
        changed["device"] = torch.device(device)
        changed.pop("pin_memory", None)
    return changed


def plain_copy(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy is one of bytes, which the runtime does itself."""
    same = target.dtype == source.dtype and target.shape == source.shape
    return same and target.is_contiguous() and source.is_contiguous()


class SimOps(TorchDispatchMode):
    """Runs operators on CUDA tensors in stream order on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        # Waiting instead, for programs that block streams while they hold the GIL.
        self.waits = os.environ.get("SIMOPS_SYNC") == "1"

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        if reason[0] is None and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
            tasks().check()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            # Shapes without memory are that mode's, which lies below this one.
            return func(*args, **(kwargs or {}))
        if any(one not in (torch.Tensor, torch.nn.Parameter) for one in types):
            # A tensor around tensors, as a DTensor: it comes here again with what is inside.
            return NotImplemented
        kwargs = kwargs or {}
        schema = func._schema
        tensors = [value for value in tree_leaves((args, kwargs)) if on_cuda(value)]
        device = kwargs.get("device")
        makes = device is not None and torch.device(device).type == "cuda"
        if not tensors and not makes:
            return func(*args, **kwargs)
        if schema.name.split("::")[0] not in NAMESPACES or self.needs_no_kernel(func, args, kwargs):
            return func(*args, **kwargs)
        target = tensors[0].device if tensors else torch.device(device)
        if target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        return self.simulate(func, args, kwargs, target)

    def needs_no_kernel(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the CUDA operator launches nothing."""
        schema = func._schema
        name = schema.name
        if name in WITHOUT_KERNELS or "empty" in name:
            return True
        returns = schema.returns
        if returns and all(one.alias_info and not one.alias_info.is_write for one in returns):
            return True
        if name == "aten::copy_":
            return plain_copy(args[0], args[1])
        if name == "aten::_to_copy":
            dtype = kwargs.get("dtype")
            goal = kwargs.get("device")
            crosses = goal is not None and torch.device(goal).type != args[0].device.type
            return crosses and dtype in (None, args[0].dtype) and args[0].is_contiguous()
        return False

    def simulate(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Runs an operator on the memory of its tensors."""
        aliases: dict[int, torch.Tensor] = {}

        def to_alias(value: Any) -> Any:
            if not on_cuda(value):
                return value
            return aliases.setdefault(id(value), alias(value))

        host_args, host_kwargs = tree_map(to_alias, (args, kwargs))
        host_kwargs = on_device(host_kwargs, "cpu")
        schema = func._schema
        written = [one for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        touches_host = any(
            isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() > 0
            for value in tree_leaves((args, kwargs))
        )
        result = None if self.waits or touches_host else self.outputs(func, args, kwargs, device)
        if result is None and (self.waits or touches_host or not written):
            return self.now(func, host_args, host_kwargs, args, kwargs, aliases, device)
        outputs, results = result if result is not None else (None, [])
        goals = [None if one is None else alias(one) for one in results]

        def run() -> None:
            with torch.no_grad():
                made = func(*host_args, **host_kwargs)
                if not written:
                    sources = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
                    for goal, source in zip(goals, sources, strict=True):
                        if goal is not None:
                            goal.copy_(source)

        tasks().put(run)
        if written:
            return self.returned(func, args, kwargs)
        return outputs

    def outputs(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Tensors for what an operator returns, and those among them that are new; or None where
        only running it tells. Some operators return parts of an argument without saying so in
        their schema; so does this, because such a part keeps the argument's memory."""
        if any(one.alias_info and one.alias_info.is_write for one in func._schema.arguments):
            return None
        owners: dict[int, torch.Tensor] = {}

        def to_meta(value: Any) -> Any:
            made = meta(value)
            if on_cuda(value):
                owners[made.untyped_storage()._cdata] = value
            return made

        try:
            shapes = func(*tree_map(to_meta, args), **on_device(tree_map(to_meta, kwargs), "meta"))
        except (NotImplementedError, RuntimeError):
            return None
        leaves = tree_leaves(shapes)
        if not all(isinstance(one, torch.Tensor) for one in leaves):
            return None
        fresh: list[torch.Tensor | None] = []

        def make(one: torch.Tensor) -> torch.Tensor:
            owner = owners.get(one.untyped_storage()._cdata)
            if owner is not None:
                fresh.append(None)
                offset = owner.storage_offset() + one.storage_offset()
                return owner.as_strided(one.shape, one.stride(), offset)
            made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device)
            fresh.append(made)
            return made

        return tree_map(make, shapes), fresh

    def returned(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns that writes to its arguments: those."""
        schema = func._schema
        written = {}
        for index, one in enumerate(schema.arguments):
            if one.alias_info and one.alias_info.is_write:
                value = args[index] if index < len(args) else kwargs.get(one.name)
                written[frozenset(one.alias_info.before_set)] = value
        values = tuple(
            written[frozenset(one.alias_info.before_set)] if one.alias_info else None
            for one in schema.returns
        )
        if not values:
            return None
        return values[0] if len(values) == 1 else values

    def now(
        self,
        func: Any,
        host_args: Any,
        host_kwargs: Any,
        args: Any,
        kwargs: Any,
        aliases: dict[int, torch.Tensor],
        device: torch.device,
    ) -> Any:
        """Waits for the stream and runs the operator at once: its result is for the host, or its
        shape depends on data."""
        tasks().check()
        torch.cuda.current_stream().synchronize()
        made = func(*host_args, **host_kwargs)
        known = {id(one): number for number, one in aliases.items()}
        memory = {one.untyped_storage().data_ptr(): number for number, one in aliases.items()}
        originals = {id(value): value for value in tree_leaves((args, kwargs)) if on_cuda(value)}

        def back(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in known:
                return originals[known[id(value)]]
            if any(value is given for given in tree_leaves((args, kwargs))):
                return value
            goal = kwargs.get("device")
            if goal is not None and torch.device(goal).type == "cpu":
                return value
            owner = originals.get(memory.get(value.untyped_storage().data_ptr(), 0))
            if owner is not None and owner.dtype == value.dtype:
                return owner.as_strided(value.shape, value.stride(), value.storage_offset())
            result = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )
            result.copy_(value)
            return result

        return tree_map(back, made)
