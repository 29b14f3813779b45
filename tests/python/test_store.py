"""Stores: any c10d store will do, one written in Python too, and its failures keep their kind."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms


class PythonStore(dist.Store):
    """Delegates to a FileStore, in Python."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def set(self, key: str, value: str | bytes) -> None:
        self.calls += 1
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        self.calls += 1
        return self.inner.get(key)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=20)) -> None:
        self.inner.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def add(self, key: str, value: int) -> int:
        return self.inner.add(key, value)

    def delete_key(self, key: str) -> bool:
        return self.inner.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)


def in_python(me: Rank) -> None:
    store = PythonStore(me.store())
    comm = me.comm(store=store)
    tensor = torch.ones(1)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)
    assert tensor.item() == me.size
    assert store.calls > 0
    comm.finalize()


@pytest.mark.parametrize("size", [2, 3])
def test_a_store_written_in_python(job, size):
    job(in_python, size)


def raises(me: Rank) -> None:
    class Broken(PythonStore):
        def set(self, *_arguments: object) -> None:
            raise KeyError("the store's own trouble")

        get = check = set

    with pytest.raises(RuntimeError, match="the store's own trouble"):
        me.comm(store=Broken(me.store()), timeout=3)
    comm = me.comm("after")
    comm.finalize()


def test_what_a_python_store_raises_arrives(job):
    job(raises, 2, env={"LOCAL_WORLD_SIZE": "1"})


def times_out(me: Rank) -> str:
    """The other rank never comes: the time is up, and that is what is said."""
    with pytest.raises(RuntimeError) as caught:
        torchcomms.new_comm(
            "gloo", "cpu", store=me.store(), name="late", timeout=timedelta(seconds=1.5)
        )
    return str(caught.value)


def disconnects(_me: Rank) -> str:
    """The server goes away while we wait for the other rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        inner = socket.create_server(("127.0.0.1", 0))
        inner_port = inner.getsockname()[1]
        inner.close()
        server = dist.TCPStore(
            "127.0.0.1", inner_port, is_master=True, wait_for_workers=False, use_libuv=False
        )
        pipes: list[socket.socket] = []

        def relay(source: socket.socket, target: socket.socket) -> None:
            try:
                while part := source.recv(65536):
                    target.sendall(part)
            except OSError:
                pass

        def accept() -> None:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", inner_port))
            pipes.extend((near, far))
            threading.Thread(target=relay, args=(near, far), daemon=True).start()
            threading.Thread(target=relay, args=(far, near), daemon=True).start()

        door = threading.Thread(target=accept, daemon=True)
        door.start()
        client = dist.TCPStore(
            "127.0.0.1", port, is_master=False, wait_for_workers=False, use_libuv=False
        )
        door.join()

        def cut() -> None:
            for pipe in pipes:
                pipe.shutdown(socket.SHUT_RDWR)

        threading.Timer(0.7, cut).start()
        with pytest.raises(RuntimeError) as caught:
            torchcomms.new_comm(
                "gloo", "cpu", store=client, name="cut", timeout=timedelta(seconds=15)
            )
        del server
    return str(caught.value)


def test_time_out_and_lost_connection_differ(job):
    # a rank 0 of two, whose rank 1 does not exist
    env = {"TORCHCOMM_RANK": "0", "TORCHCOMM_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    (late,) = job(times_out, 1, env=env)
    assert "time-out" in late
    assert "1" in late
    env["TORCHCOMM_RANK"] = "1"
    (lost,) = job(disconnects, 1, env=env)
    assert "connection lost" in lost, lost
    assert "time-out" not in lost


def over_tcp(me: Rank, port: int) -> None:
    store = dist.TCPStore(
        "127.0.0.1", port, me.size, is_master=me.rank == 0, wait_for_workers=False
    )
    for name in ("one", "two", "one"):
        comm = me.comm(name, store=dist.PrefixStore(f"{name}", store))
        comm.barrier()
        comm.finalize()


def test_the_same_name_again_on_the_same_store(job):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job(over_tcp, 3, port)
