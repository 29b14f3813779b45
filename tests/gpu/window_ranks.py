"""What one rank does to windows on the simulated GPU: `python window_ranks.py NAME...`.

The bodies are those of tests/python/windows.py, which the host engine passes. FC_FOLDER is a folder
that the ranks share.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from simops import SimOps

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import windows
from ranks import Rank

os.environ.setdefault("TORCHCOMM_ABORT_ON_ERROR", "0")
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ME = Rank(RANK, SIZE, Path())  # its folder is the program's
PLACE = windows.Place("nccl", f"cuda:{RANK}", "allocator")
ROUNDS = 1000


def everything() -> None:
    assert windows.everything(ME, PLACE, ROUNDS) == "WIN_ACCESS_TYPE_UNIFIED"


def through_torch_distributed() -> None:
    windows.through_torch_distributed(ME, PLACE)


def apart() -> None:
    """Signals are one window's alone, puts are no signals, and waits hold nothing else up."""
    comm = PLACE.comm(ME)
    following, last = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    one, two = comm.new_window(PLACE.tensor(4)), comm.new_window(PLACE.tensor(4))
    waits = [window.wait_signal(last, async_op=True) for window in (one, two)]
    value = torch.full((4,), RANK, device=PLACE.device)
    for _ in range(5):
        one.put(value, following, 0)
    # What was issued after the waits is not behind them.
    comm.barrier()
    # The whole device would wait for the waits.
    torch.cuda.current_stream().synchronize()
    assert [work.is_completed() for work in waits] == [False, False]
    assert one.get_tensor().tolist() == [last] * 4
    two.signal(following)
    waits[1].wait_blocking()
    assert not waits[0].is_completed()
    comm.barrier()
    one.signal(following)
    waits[0].wait_blocking()
    two.tensor_deregister()
    one.tensor_deregister()
    comm.finalize()


def unfit() -> None:
    """One rank's memory that cannot be a window is refused on all, by name, and harms nothing."""
    comm = PLACE.comm(ME)
    whole = PLACE.tensor(1024)
    mine = whole[1:] if RANK == 1 else whole
    words = "multiple of 4096" if RANK == 1 else "other ranks could not make the window.*peer 1"
    with pytest.raises(ValueError, match=words):
        comm.new_window(mine)
    plain = torch.zeros(1024, dtype=torch.int64, device=PLACE.device)
    with pytest.raises(ValueError, match="ncclMemAlloc"):
        comm.new_window(plain)
    window = comm.new_window(whole)
    window.signal((RANK + 1) % SIZE)
    window.wait_signal((RANK - 1) % SIZE)
    window.tensor_deregister()
    comm.finalize()


def kept() -> None:
    """A mapped tensor is memory for as long as it lives, whatever ends before it."""
    following = (RANK + 1) % SIZE
    for ending in ("deregister", "finalize", "abort"):
        comm = PLACE.comm(ME, ending)
        given = PLACE.tensor(1 << 20)
        window = comm.new_window(given)
        given.copy_(torch.full(given.shape, RANK + 1))
        torch.cuda.synchronize()
        comm.barrier()
        mapped = window.map_remote_tensor(following)
        assert mapped[-1].item() == following + 1
        comm.barrier()
        if ending != "abort":
            window.tensor_deregister()
        del given
        if ending == "finalize":
            comm.finalize()
        if ending == "abort":
            comm.abort()
        del window
        assert mapped.sum().item() == (1 << 20) * (following + 1)
        mapped.fill_(7)
        assert mapped.sum().item() == (1 << 20) * 7
        if ending == "deregister":
            comm.barrier()
        del mapped
        if ending == "deregister":
            comm.finalize()


def late() -> None:
    """A wait whose signal does not come fails its communicator, and the device goes on."""
    comm = PLACE.comm(ME)
    window = comm.new_window(PLACE.tensor(4))
    comm.barrier()
    if RANK == 0:
        with pytest.raises(windows.Place().failure, match=r"time-out.*wait_signal"):
            window.wait_signal(1, async_op=True, timeout=timedelta(seconds=1)).wait_blocking()
        torch.cuda.synchronize()
        assert comm.state() == "failed"
        ME.store("over").set("over", "")
    else:
        ME.store("over").wait(["over"], timedelta(seconds=60))
    comm.abort()


if __name__ == "__main__":
    torch.cuda.set_device(RANK)
    for name in sys.argv[1:]:
        folder = Path(os.environ["FC_FOLDER"]) / name
        folder.mkdir(exist_ok=True)
        ME = Rank(RANK, SIZE, folder)
        with SimOps():
            globals()[name]()
        print("DONE", name, flush=True)
