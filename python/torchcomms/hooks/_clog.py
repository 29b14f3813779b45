"""A hook that writes a line of text per call.

Looks at arguments and changes nothing; must not know the engine.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchcomms._hook_args import OpName, PostHookArgs, PreHookArgs

if TYPE_CHECKING:
    from torchcomms._comms import RemovableHandle, TorchComm

_LIFE_CYCLE = {"split", "new_window", "finalize", "abort"}
_POINT_TO_POINT = {"send", "recv"}
_NAMES = {name.value for name in OpName} | {"abort"}
_KINDS = {
    "all": _NAMES,
    "collectives": _NAMES - _LIFE_CYCLE - _POINT_TO_POINT,
    "point_to_point": _POINT_TO_POINT,
    "life_cycle": _LIFE_CYCLE,
}


class clog:
    """Writes a line when an operation is called and one when it was issued.

    Args:
        output: a file's path, which is appended to, or an open text file; without one: stderr.
        events: which operations: their names, `abort`, or `collectives`, `point_to_point`,
            `life_cycle`, `all`. Without any: all.

    A line is: time (UTC), communicator, rank, number of the operation, its name, and its arguments
    or `issued`. Tensors are shown by dtype, shape and device, never by content.

    Raises:
        ValueError: an event that there is not.
        OSError: the file cannot be opened.
    """

    def __init__(
        self, output: str | Path | TextIO | None = None, events: Iterable[str] | None = None
    ) -> None:
        asked = ["all"] if events is None else [events] if isinstance(events, str) else list(events)
        self._events: set[str] = set()
        for event in asked:
            if event not in _KINDS and event not in _NAMES:
                known = ", ".join(sorted({*_KINDS, *_NAMES}))
                raise ValueError(f"unknown event {event!r}: expected some of {known}")
            self._events |= _KINDS.get(event, {event})
        self._opened = isinstance(output, str | Path)
        self._file: TextIO
        if isinstance(output, str | Path):
            self._file = open(output, "a", encoding="utf-8")  # noqa: SIM115  (closed by `close`)
        else:
            self._file = sys.stderr if output is None else output
        self._lock = threading.Lock()
        self._handles: list[RemovableHandle] = []

    def register_with_comm(self, comm: TorchComm) -> None:
        """Logs the calls of `comm` from now on, also those of its torch.distributed group."""
        who = f"{comm.get_name()} rank={comm.get_rank()}"

        def before(name: OpName, op_id: int, args: PreHookArgs) -> None:
            if name.value in self._events:
                self._write(f"{who} op_id={op_id} {name.value}{_shown(args)}")

        def after(op_id: int, args: PostHookArgs) -> None:
            if args.op_name.value in self._events:
                self._write(f"{who} op_id={op_id} {args.op_name.value} issued")

        self._handles += [comm.register_pre_hook(before), comm.register_post_hook(after)]
        if "abort" in self._events:
            self._handles.append(comm.register_abort_hook(lambda: self._write(f"{who} abort")))

    def unregister(self) -> None:
        """Stops logging, on all communicators, and closes a file that it opened."""
        while self._handles:
            self._handles.pop().remove()
        if self._opened:
            with self._lock:
                self._file.close()

    def is_enabled(self) -> bool:
        """Whether a communicator is registered."""
        return bool(self._handles)

    def _write(self, text: str) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        with self._lock:
            if not self._file.closed:
                self._file.write(f"{now} {text}\n")
                self._file.flush()


def _shown(args: PreHookArgs) -> str:
    named: Any = args
    return "".join(f" {f.name}={_value(getattr(args, f.name))}" for f in fields(named))


def _value(value: Any) -> str:
    if isinstance(value, list) and value and hasattr(value[0], "dtype"):
        return "[" + ",".join(_value(one) for one in value) + "]"
    if hasattr(value, "dtype"):
        shape = "x".join(map(str, value.shape)) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]@{value.device}"
    if hasattr(value, "type") and hasattr(value.type, "name"):
        return str(value.type.name)
    return repr(value)
