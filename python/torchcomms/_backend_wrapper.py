"""Where torch 2.12 and later look for `_BackendWrapper` when the extension lacks a newer name.

Must not know what it does.
"""

from torchcomms._comms import _BackendWrapper

__all__ = ["_BackendWrapper"]
