"""The self-test of windows: puts, signals and reads between neighbours, with data that changes.

Must not know processes or what is printed.
"""

from __future__ import annotations

from datetime import timedelta

import torch

from torchcomms import TorchComm, TorchCommWindow, get_mem_allocator
from torchcomms._selftest._wrong import Wrong

ROUNDS = 100
_WORDS = 257
# How long a rank waits for a signal that nobody gives.
_SHORT = timedelta(milliseconds=300)


def plain(comm: TorchComm) -> None:
    """Windows of tensors that torch allocated; NCCL takes its own memory alone."""
    _try(comm, torch.zeros(_WORDS, dtype=torch.int64))


def allocated(comm: TorchComm) -> None:
    """Windows of tensors of the backend's allocator."""
    _try(comm, _of_allocator(comm))


def time_out(comm: TorchComm, victim: TorchComm) -> None:
    """A wait for a signal that nobody gives ends. On a device it takes its communicator along."""
    window = victim.new_window(_of_allocator(victim))
    try:
        window.wait_signal(_previous(comm), async_op=True, timeout=_SHORT).wait_blocking()
    except torch.distributed.DistBackendError:
        pass
    else:
        raise Wrong("a wait without a signal did not time out")
    finally:
        comm.barrier()
        victim.abort()


def _of_allocator(comm: TorchComm) -> torch.Tensor:
    allocator, device = get_mem_allocator(comm.get_backend()), comm.get_device()
    memory: torch.Tensor
    if device.type == "cpu":
        memory = allocator.empty([_WORDS], torch.int64)
    else:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator)):
            memory = torch.empty(_WORDS, dtype=torch.int64, device=device)
    memory.copy_(torch.zeros(_WORDS, dtype=torch.int64))
    return memory


def _next(comm: TorchComm) -> int:
    return (comm.get_rank() + 1) % comm.get_size()


def _previous(comm: TorchComm) -> int:
    return (comm.get_rank() - 1) % comm.get_size()


def _try(comm: TorchComm, memory: torch.Tensor) -> None:
    window = comm.new_window(memory)
    try:
        _rounds(comm, window, memory)
    finally:
        window.tensor_deregister()


def _rounds(comm: TorchComm, window: TorchCommWindow, memory: torch.Tensor) -> None:
    """Every rank writes to the next one; what it finds is this round's, whole."""
    me, left, right = comm.get_rank(), _previous(comm), _next(comm)
    for round in range(ROUNDS):
        asynchronous = round % 2 == 1
        sent = torch.full((_WORDS,), round * comm.get_size() + me).to(memory.device)
        works = [
            window.put(sent, right, 0, asynchronous),
            window.signal(right, asynchronous),
            window.wait_signal(left, asynchronous),
        ]
        if asynchronous:
            for work in works:
                work.wait()
        found = memory.cpu()
        expected = round * comm.get_size() + left
        if not bool((found == expected).all()):
            raise Wrong(f"round {round}: {found[found != expected][0].item()} is not {expected}")
        # The neighbour may write again.
        window.signal(left, async_op=False)
        window.wait_signal(right, async_op=False)
