"""ncclx is refused in the same words, whichever way it is asked for."""

from __future__ import annotations

import pytest
import torch
from ranks import Rank

import torchcomms

WORDS = r"'ncclx' is not supported through this package: use 'nccl'"


def test_new_comm():
    with pytest.raises(NotImplementedError, match=WORDS):
        torchcomms.new_comm("ncclx", torch.device("cuda"))


def test_is_backend_built():
    assert not torchcomms.is_backend_built("ncclx")
    assert not torchcomms.is_backend_built("NCCLX")
    assert "ncclx" not in torchcomms.built_backends()


def as_a_group(me: Rank, backend: str, switch: bool) -> None:
    with pytest.raises(NotImplementedError, match=WORDS):
        me.world(backend, switch=switch)


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("backend", ["ncclx", "cuda:ncclx", "cpu:gloo,cuda:ncclx"])
def test_init_process_group(job, backend, switch):
    job(as_a_group, 1, backend, switch)


def test_names_that_are_built():
    assert torchcomms.built_backends() == ["gloo", "nccl"]
    for name in ("gloo", "GLOO", "nccl"):
        assert torchcomms.is_backend_built(name)
    for name in ("mpi", "ucc", "fake", ""):
        assert not torchcomms.is_backend_built(name)
