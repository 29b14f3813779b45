"""Hooks that attach to a communicator. torch.distributed imports `FlightRecorderHook` from here.

Must not know what a hook does.
"""

from torchcomms.hooks._clog import clog
from torchcomms.hooks._flight_recorder import FlightRecorderHook
from torchcomms.hooks._nan_check import NanCheckHook

__all__ = ["FlightRecorderHook", "NanCheckHook", "clog"]
