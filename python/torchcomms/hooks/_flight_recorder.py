"""A view on the engine's flight recorder.

The engine always notes the operations of the process in a ring of its own. A hook chooses what of
it is shown: how many entries, and of which communicators. It records nothing and slows nothing.
"""

from __future__ import annotations

import json
import os
import pickle
from typing import Any, Literal

from torchcomms import _comms

DUMP_FILE_VARIABLE = "TORCHCOMM_FR_DUMP_TEMP_FILE"
_DEFAULT_DUMP_FILE = "torchcomm_fr_rank_"


class FlightRecorderHook:
    """The last operations of the process, as JSON that torch's flight recorder analyser reads.

    Args:
        max_entries: show at most so many of the newest operations; 0 shows none, which is what
            torch asks for unless TORCH_FR_BUFFER_SIZE says otherwise.
        isolated: show the operations of the registered communicators alone, and let `reset` hide
            what went before from this hook alone. Otherwise the hook shows all communicators of
            the process, and `reset` empties the engine's ring for every hook.

    Methods may be called from any thread; none waits for an operation.
    """

    def __init__(self, max_entries: int = 2048, isolated: bool = False) -> None:
        if isinstance(max_entries, bool) or not isinstance(max_entries, int):
            raise TypeError(f"max_entries must be an int, got {max_entries!r}")
        if max_entries < 0:
            raise ValueError(f"max_entries must not be negative, got {max_entries}")
        self._max_entries = max_entries
        self._isolated = isolated
        self._names: set[str] = set()
        self._shown_from = 0

    def register_with_comm(self, comm: _comms.TorchComm) -> None:
        """Adds a communicator to those shown."""
        self._names.add(comm.get_name())

    def unregister(self) -> None:
        """Takes all communicators off; nothing is shown until one is registered again."""
        self._names.clear()

    def is_enabled(self) -> bool:
        """Whether a communicator is registered."""
        return bool(self._names)

    def size(self) -> int:
        """How many operations `dump_json` would show."""
        return len(self._dump(only_active=False)["entries"])

    def reset(self) -> None:
        """Forgets the operations so far."""
        if not self._isolated:
            _comms._recorder_reset()
            return
        newest = json.loads(_comms._recorder_dump(1, False))["entries"]
        if newest:
            self._shown_from = newest[-1]["record_id"] + 1

    def dump_json(self, include_completed: bool = True) -> str:
        """The operations shown, oldest first; without those that are over if so asked."""
        return json.dumps(self._dump(only_active=not include_completed))

    def dump_file(
        self,
        rank: int,
        include_completed: bool = True,
        format: Literal["json", "pickle"] = "json",
    ) -> str:
        """Writes a dump to the file TORCHCOMM_FR_DUMP_TEMP_FILE followed by `rank`.

        Without the variable the file is `torchcomm_fr_rank_<rank>` in the current folder. Folders
        on the way are made. Returns the path. `json` writes `dump_json`; `pickle` the same content
        in the form that `python -m torch.distributed.flight_recorder.fr_trace` loads.

        Raises:
            OSError: the file cannot be written.
            ValueError: there is no such format.
        """
        dump = self._dump(only_active=not include_completed)
        if format == "json":
            content = json.dumps(dump).encode()
        elif format == "pickle":
            content = pickle.dumps(dump)
        else:
            raise ValueError(f"unknown format {format!r}: expected 'json' or 'pickle'")
        path = f"{os.environ.get(DUMP_FILE_VARIABLE) or _DEFAULT_DUMP_FILE}{rank}"
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        # A reader never sees half a file: written beside it, then renamed.
        unfinished = f"{path}.{os.getpid()}.tmp"
        with open(unfinished, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
        return path

    def _dump(self, *, only_active: bool) -> dict[str, Any]:
        dump: dict[str, Any] = json.loads(_comms._recorder_dump(0, only_active))
        shown = [entry for entry in dump["entries"] if self._shows(entry)]
        # entries[-0:] would be all of them
        dump["entries"] = shown[-self._max_entries :] if self._max_entries else []
        if self._isolated:
            for key in ("pg_config", "pg_status"):
                dump[key] = {name: v for name, v in dump[key].items() if name in self._names}
        return dump

    def _shows(self, entry: dict[str, Any]) -> bool:
        if not self._names:
            return False
        if not self._isolated:
            return True
        return entry["process_group"][0] in self._names and entry["record_id"] >= self._shown_from
