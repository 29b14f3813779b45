"""What ranks do to windows, on any engine: bodies for `ranks.run_ranks`.

A `Place` says where tensors live and how a communicator is made, so that the same bodies run for
tensors in host memory and on a GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank

import torchcomms
from torchcomms import TorchCommWinAccessType

UNIFIED = TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED
SHORT = timedelta(milliseconds=200)
WORDS = 33


@dataclass
class Place:
    """An engine, and where its tensors live."""

    backend: str = "gloo"
    device: str = "cpu"
    # where the window's own tensor comes from: "allocator" or "plain"
    memory: str = "plain"
    # the kind of error of what fails later
    failure: type[Exception] = dist.DistBackendError

    def comm(self, me: Rank, name: str = "comm", timeout: float = 20.0) -> torchcomms.TorchComm:
        return torchcomms.new_comm(
            self.backend,
            self.device,
            name=name,
            timeout=timedelta(seconds=timeout),
            store=me.store(f"store-{name}"),
        )

    def tensor(self, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Zeros that a window may be made of."""
        if self.memory == "plain":
            return torch.zeros(count, dtype=dtype, device=self.device)
        if self.device == "cpu":
            return torchcomms.get_mem_allocator(self.backend).empty([count], dtype).zero_()
        pool = torch.cuda.MemPool(torchcomms.get_mem_allocator(self.backend))
        with torch.cuda.use_mem_pool(pool):
            return torch.zeros(count, dtype=dtype, device=self.device)


def everything(me: Rank, place: Place, rounds: int) -> str:
    """All that leaves the communicator usable; how the other's window is reached."""
    comm = place.comm(me)
    for body in (rounds_of_data(rounds), sizes_that_differ, life_of_a_window, wrong_arguments):
        body(comm, place)
    extensions(comm, place)
    to_oneself(comm, place)
    access = shared_view(comm, place)
    waits(comm, place)
    comm.finalize()
    return access


def rounds_of_data(rounds: int) -> Callable[[torchcomms.TorchComm, Place], None]:
    """Every round puts other values to the next rank, and no rank sees old ones."""

    def run(comm: torchcomms.TorchComm, place: Place) -> None:
        rank, size = comm.get_rank(), comm.get_size()
        following, last = (rank + 1) % size, (rank - 1) % size
        own = place.tensor(size * WORDS)
        window = comm.new_window(own)
        mine = own[last * WORDS : (last + 1) * WORDS]
        base = torch.arange(WORDS, device=place.device)
        for turn in range(rounds):
            later = turn % 2 == 1
            works = [
                window.put(base + 1000 * turn + rank, following, rank * WORDS, async_op=later),
                window.signal(following, async_op=later),
                window.wait_signal(last, async_op=later),
            ]
            for work in works:
                work.wait()
            assert torch.equal(mine, base + 1000 * turn + last), (turn, mine)
            # Only now may the other put again.
            window.signal(last)
            window.wait_signal(following)
        window.tensor_deregister()

    return run


def sizes_that_differ(comm: torchcomms.TorchComm, place: Place) -> None:
    """Bounds are those of the rank that is written to."""
    rank, size = comm.get_rank(), comm.get_size()
    own = place.tensor(10 * (rank + 1), torch.float32)
    window = comm.new_window(own)
    assert window.get_size() == 10 * (rank + 1)
    following, last = (rank + 1) % size, (rank - 1) % size
    room = 10 * (following + 1)
    ones = torch.ones(10, device=place.device)
    with pytest.raises(ValueError, match=f"the {4 * room} bytes that rank {following} registered"):
        window.put(ones, following, room - 9)
    with pytest.raises(ValueError, match="do not lie within"):
        window.put(ones, following, 1 << 60)
    window.put(ones * (rank + 1), following, room - 10)
    window.signal(following)
    window.wait_signal(last)
    assert torch.equal(own[-10:], ones * (last + 1))
    assert torch.equal(own[:-10], torch.zeros(10 * rank, device=place.device))
    window.tensor_deregister()


def life_of_a_window(comm: torchcomms.TorchComm, place: Place) -> None:
    window = comm.new_window()
    with pytest.raises(ValueError, match="has no tensor"):
        window.put(place.tensor(1), 0, 0)
    with pytest.raises(ValueError, match="has no tensor"):
        window.tensor_deregister()
    with pytest.raises(ValueError, match="not contiguous"):
        window.tensor_register(place.tensor(8).reshape(2, 4).t())
    for turn in range(3):
        own = place.tensor(6, torch.int32).reshape(2, 3)
        window.tensor_register(own, owning=turn != 1)
        assert (window.dtype, window.shape) == (torch.int32, torch.Size([2, 3]))
        assert window.device.type == own.device.type
        assert window.get_tensor().data_ptr() == own.data_ptr()
        with pytest.raises(ValueError, match="has a tensor already"):
            window.tensor_register(own)
        window.tensor_deregister()
    with pytest.raises(ValueError, match="has no tensor"):
        window.signal(0)


def wrong_arguments(comm: torchcomms.TorchComm, place: Place) -> None:
    size = comm.get_size()
    window = comm.new_window(place.tensor(8, torch.float32))
    ones = torch.ones(2, device=place.device)
    for wrong, words in (
        (lambda: window.put(ones, size, 0), "dst is not a rank"),
        (lambda: window.put(ones, -1, 0), "dst is not a rank"),
        (lambda: window.put(ones, 0, -1), "offset is negative"),
        (lambda: window.put(ones.double(), 0, 0), "differs in dtype"),
        (lambda: window.put(ones.to("meta"), 0, 0), "wrong device"),
        (lambda: window.signal(size), "dst is not a rank"),
        (lambda: window.wait_signal(-2), "src is not a rank"),
        (lambda: window.get_attr(size), "rank is not a rank"),
        (lambda: window.map_remote_tensor(size), "rank is not a rank"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    assert torch.equal(window.get_tensor(), torch.zeros(8, device=place.device))
    window.tensor_deregister()
    # Bytes take anything.
    window.tensor_register(place.tensor(64, torch.uint8))
    window.put(ones.double(), comm.get_rank(), 1)
    assert torch.equal(window.get_tensor()[8:24].view(torch.float64), ones.double())
    window.tensor_deregister()


def extensions(comm: torchcomms.TorchComm, place: Place) -> None:
    """Long ones too, of several frames."""
    rank, size = comm.get_rank(), comm.get_size()
    following, last = (rank + 1) % size, (rank - 1) % size
    count = 300_001
    own = place.tensor(count)
    window = comm.new_window(own)
    values = torch.arange(count - 1, device=place.device) * (rank + 1)
    work = window.put_signal(values, following, 1, async_op=True)
    window.wait_signal(last)
    work.wait()
    assert torch.equal(own[1:], torch.arange(count - 1, device=place.device) * (last + 1))
    window.signal(last)
    window.wait_signal(following)
    back = torch.zeros(2, count - 1, dtype=torch.int64, device=place.device)
    window.get(back[0], following, 1)
    window.get(back[1], following, 1, async_op=True).wait()
    assert torch.equal(back, torch.stack([values, values]))
    window.tensor_deregister()


def to_oneself(comm: torchcomms.TorchComm, place: Place) -> None:
    rank = comm.get_rank()
    window = comm.new_window(place.tensor(4))
    window.put(torch.full((2,), 7, device=place.device), rank, 2)
    window.signal(rank)
    window.wait_signal(rank)
    assert window.get_tensor().tolist() == [0, 0, 7, 7]
    assert window.get_attr(rank).access_type == UNIFIED
    assert window.map_remote_tensor(rank).data_ptr() == window.get_tensor().data_ptr()
    window.tensor_deregister()


def shared_view(comm: torchcomms.TorchComm, place: Place) -> str:
    rank, size = comm.get_rank(), comm.get_size()
    following, last = (rank + 1) % size, (rank - 1) % size
    own = place.tensor(6)
    window = comm.new_window(own.reshape(2, 3))
    access = window.get_attr(following).access_type
    if access == UNIFIED:
        view = window.map_remote_tensor(following)
        assert view.shape == (2, 3)
        view[1, rank % 3] = 50 + rank
        comm.barrier()
        assert own[3 + last % 3] == 50 + last
        own[0] = 60 + rank
        comm.barrier()
        assert view[0, 0] == 60 + following
        window.tensor_deregister()
        # What is left of it is nobody's any more.
        assert view.shape == (2, 3)
    else:
        with pytest.raises(NotImplementedError, match="no address"):
            window.map_remote_tensor(following)
        window.tensor_deregister()
    return str(access.name)


def moved_to_shared_memory(me: Rank) -> None:
    """The hint `share_memory` moves the tensor, its views and its values."""
    comm = Place().comm(me)
    rank, size = comm.get_rank(), comm.get_size()
    following, last = (rank + 1) % size, (rank - 1) % size
    own = torch.arange(8) + 100 * rank
    view, outside = own[2:4], own.numpy()
    for value in ("false", "0"):
        window = comm.new_window(own, hints={"share_memory": value})
        assert window.get_attr(following).access_type != UNIFIED
        window.tensor_deregister()
    with pytest.raises(ValueError, match=r"hint share_memory has no such value.*maybe"):
        comm.new_window(own, hints={"share_memory": "maybe"})
    before = own.data_ptr()
    window = comm.new_window(own, hints={"share_memory": "true"})
    assert window.get_attr(following).access_type == UNIFIED
    assert own.data_ptr() != before
    assert view.data_ptr() == own.data_ptr() + 16
    assert own.tolist() == [n + 100 * rank for n in range(8)]
    comm.barrier()  # from here on the others write to it
    window.put(torch.tensor([-1 - rank]), following, 2)
    window.signal(following)
    window.wait_signal(last)
    assert view.tolist() == [-1 - last, 3 + 100 * rank]
    assert window.map_remote_tensor(following)[7] == 7 + 100 * following
    # Who had the memory before keeps it, as it was.
    assert outside.tolist() == [n + 100 * rank for n in range(8)]
    window.tensor_deregister()
    # What lies there stays there.
    before = own.data_ptr()
    window.tensor_register(own, hints={"share_memory": "1"})
    assert own.data_ptr() == before
    window.tensor_deregister()
    assert own[2] == -1 - last
    comm.finalize()


def waits(comm: torchcomms.TorchComm, place: Place) -> None:
    """A wait that times out names whom it waited for, and takes no signal."""
    rank, size = comm.get_rank(), comm.get_size()
    following, last = (rank + 1) % size, (rank - 1) % size
    window = comm.new_window(place.tensor(4))
    if place.backend == "gloo":
        with pytest.raises(place.failure, match=rf"time-out.*peer {last}.*wait_signal"):
            window.wait_signal(last, timeout=SHORT)
        assert comm.state() == "ready"
    works = [window.wait_signal(last, async_op=True) for _ in range(3)]
    comm.barrier()
    for _ in range(4):
        window.signal(following)
    window.wait_signal(last)
    if place.device != "cpu":
        torch.cuda.synchronize()
    assert all(work.is_completed() for work in works)
    comm.barrier()
    window.tensor_deregister()


def peer_that_dies(me: Rank, place: Place) -> str:
    comm = place.comm(me)
    window = comm.new_window(place.tensor(4))
    comm.barrier()
    me.meet("before")
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(place.failure) as caught:
        window.wait_signal(1)
    return str(caught.value)


def abort_while_waiting(me: Rank, place: Place) -> str:
    comm = place.comm(me)
    window = comm.new_window(place.tensor(4))
    me.meet("before")
    if me.rank == 1:
        me.meet("after")
        return ""
    work = window.wait_signal(1, async_op=True)
    entered = threading.Event()

    def abort() -> None:
        entered.wait()
        comm.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    entered.set()
    with pytest.raises(place.failure) as caught:
        work.wait()
    thread.join()
    with pytest.raises(place.failure, match="aborted"):
        window.put(torch.ones(1, dtype=torch.int64, device=place.device), 1, 0)
    me.meet("after")
    return str(caught.value)


def dropped_without_word(me: Rank, place: Place) -> None:
    """The memory stays while the others may still write to it."""
    comm = place.comm(me)
    window = comm.new_window(place.tensor(1000))
    me.meet("registered")
    if me.rank == 0:
        del window
    me.meet("dropped")
    if me.rank == 1:
        # Who reaches it directly is told; a message is for nobody any more.
        with contextlib.suppress(place.failure):
            window.put(torch.ones(1000, dtype=torch.int64, device=place.device), 0, 0)
    me.meet("put")
    assert place.tensor(1000).sum() == 0


def through_torch_distributed(me: Rank, place: Place) -> None:
    me.world(place.backend)
    group = dist.group.WORLD
    assert group is not None
    assert group.supports_window
    own = place.tensor(me.size)
    window = group.new_window(own)
    for turn in range(10):
        for peer in range(me.size):
            value = torch.full((1,), 10 * turn + me.rank, device=place.device)
            window.put(value, peer, me.rank, False)
            window.signal(peer, False)
        for peer in range(me.size):
            window.wait_signal(peer, True).wait()
        assert own.tolist() == [10 * turn + peer for peer in range(me.size)]
        dist.barrier()
    unified = window.get_attr(me.rank).access_type.name
    assert unified == "UNIFIED"
    assert window.map_remote_tensor(me.rank).tolist() == own.tolist()
    with pytest.raises(ValueError, match="do not lie within"):
        window.put(own, 0, 1, False)
    window.tensor_deregister()
    window.tensor_register(own, False)
    window.tensor_deregister()
    dist.destroy_process_group()
