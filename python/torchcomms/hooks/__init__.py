"""Hooks that attach to a communicator. torch.distributed imports `FlightRecorderHook` from here."""

from torchcomms.hooks._flight_recorder import FlightRecorderHook

__all__ = ["FlightRecorderHook"]
