"""Whether methods of `TorchComm` are to be traced by torch's compiler; see `functional._methods`.

The variable is read at import, and what it asks for is done with the first communicator: torch may
be in the middle of its own import when it imports this package. Must not import torch itself. Must
not know how a method is traced.
"""

from __future__ import annotations

import os

VARIABLE = "TORCHCOMMS_PATCH_FOR_COMPILE"

_VALUE = os.environ.get(VARIABLE, "0").lower()

ENABLED = _VALUE in ("1", "true")


def prepare() -> None:
    """Patches the methods where the variable asks for it; before the first communicator.

    Raises:
        ValueError: the variable has another value than 0, 1, true or false.
    """
    if _VALUE not in ("", "0", "false", "1", "true"):
        raise ValueError(f"{VARIABLE}={_VALUE!r}: expected 0, 1, true or false")
    if ENABLED:
        from torchcomms.functional import _methods

        _methods.patch()
