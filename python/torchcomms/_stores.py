"""The store through which ranks meet when the caller brings none, and the key space on it.

One client per process and address, shared by all communicators. Must not know the engine.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from torchcomms import _ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class _Endpoint(NamedTuple):
    # A forked child must not speak on its parent's connection, so the process is part of the key.
    process: int
    address: str
    port: int


_lock = threading.Lock()
_clients: dict[_Endpoint, Store] = {}
_joins: Counter[tuple[_Endpoint, str]] = Counter()


def shared(name: str, rank: int, size: int, timeout: timedelta) -> Store:
    """A fresh key space, for communicator `name`, on the store at MASTER_ADDR and MASTER_PORT.

    Rank 0 serves the store unless torchrun's agent does; within a process the server is shared
    with the one that `init_process_group("env://")` makes, so the port is bound once. Every call
    gets a key space of its own: communicators are made in the same order under one name on all
    ranks, so counting the calls gives the same space everywhere.

    Raises:
        ValueError: MASTER_ADDR or MASTER_PORT is missing or wrong.
        RuntimeError: the store cannot be served or reached within `timeout`.
    """
    from torch._C._distributed_c10d import PrefixStore

    endpoint = _endpoint()
    with _lock:
        client = _clients.get(endpoint)
        if client is None:
            client = _connect(endpoint, rank, size, timeout)
            _clients[endpoint] = client
        _joins[endpoint, name] += 1
        turn = _joins[endpoint, name]
    return PrefixStore(f"torchcomms/{name}/{turn}", attempt(client))


def attempt(store: Store) -> Store:
    """`store` with a key space per restart of the job.

    torchrun's agent keeps its store over restarts, with the keys of the attempt before on it.
    """
    from torch._C._distributed_c10d import PrefixStore

    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return store if restarts == "0" else PrefixStore(f"restart/{restarts}", store)


def _endpoint() -> _Endpoint:
    address = os.environ.get("MASTER_ADDR", "")
    if not address:
        raise ValueError(
            f"MASTER_ADDR={address!r}: expected the host name or address of rank 0; torchrun sets "
            "it, or pass a store"
        )
    port = _ranks.integer(os.environ, "MASTER_PORT", minimum=1, maximum=65535)
    return _Endpoint(os.getpid(), address, port)


def _connect(endpoint: _Endpoint, rank: int, size: int, timeout: timedelta) -> Store:
    from torch._C._distributed_c10d import TCPStore

    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    serves = rank == 0 and not agent_serves
    try:
        # Without waiting for the others here: a rank that never comes is to be named by the
        # engine, which knows who has joined.
        return TCPStore(
            endpoint.address,
            endpoint.port,
            world_size=size,
            is_master=serves,
            timeout=timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        act = "serve" if serves else "reach"
        remedy = (
            "choose a free port"
            if serves
            else "rank 0 serves it: check that it runs and that the address is reachable from here"
        )
        raise RuntimeError(
            f"rank {rank} of {size} cannot {act} the store at MASTER_ADDR={endpoint.address} "
            f"MASTER_PORT={endpoint.port} within {timeout.total_seconds():g} s: {remedy}: {error}"
        ) from error
