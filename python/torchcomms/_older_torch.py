"""What torch before 2.13 needs of us beyond its own code.

There the switch registers each backend as of type CUSTOM, whatever it is called, while the group
goes by the name: DDP's logger asks a group called gloo for its backend of type GLOO, and a group
for two devices has one backend for both. Must not know the engine.
"""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    """Lets a backend of ours be registered under the type that its name has."""
    from torch._C._distributed_c10d import ProcessGroup

    from torchcomms._comms import _BackendWrapper

    types: dict[str, Any] = {
        "gloo": ProcessGroup.BackendType.GLOO,
        "nccl": ProcessGroup.BackendType.NCCL,
    }
    as_torch_does = ProcessGroup._register_backend

    def register(group: Any, device: Any, backend_type: Any, backend: Any = None) -> None:
        if isinstance(backend, _BackendWrapper):
            backend_type = types.get(backend.get_comm().get_backend(), backend_type)
        as_torch_does(group, device, backend_type, backend)

    patched: Any = ProcessGroup
    patched._register_backend = register
