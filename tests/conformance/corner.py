"""The list of the fixed cases, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from calls import Request, prepare
from elements import Bytes
from modes import Digests, Step
from session import Session

Corner = Callable[[Session, int], Digests]
CORNERS: dict[str, Corner] = {}


def corner(function: Corner) -> Corner:
    CORNERS[function.__name__] = function
    return function


def rows_of(tensor: torch.Tensor) -> Bytes:
    """The elements of a tensor as rows of bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    size = flat.element_size()
    if flat.numel() == 0:
        return np.empty((0, size), np.uint8)
    rows: Bytes = flat.view(torch.uint8).numpy().reshape(-1, size)
    return rows


def step(session: Session, request: Request, group: str = "world") -> Step:
    """A call on one of the session's communicators."""
    comm = {
        "world": session.world,
        "other": session.other,
        "half": session.halves,
        "mirrored": session.mirrored,
    }[group]
    label = session.half if group == "half" else group
    return label, comm, prepare(request, session.place(comm))
