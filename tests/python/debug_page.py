"""A job that hangs, and the pages of torch's debug server that say so; run by test_debug_page.py.

    torchrun --nproc_per_node=2 tests/python/debug_page.py PORT FOLDER

Rank 1 leaves an all_reduce out until the test has seen the pages and says so.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import debug


def main(port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    debug.start_debug_server(port=port, start_method="spawn")
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    stuck = None
    if dist.get_rank() == 0:
        stuck = dist.all_reduce(torch.ones(1000), async_op=True)
    (folder / f"ready{dist.get_rank()}").touch()
    dist.FileStore(str(folder / "meeting"), 3).wait(["seen"], timedelta(seconds=100))
    if stuck is None:
        dist.all_reduce(torch.ones(1000))
    else:
        stuck.wait()
    # torch's own way to stop it takes rank 0 for granted.
    if dist.get_rank() == 0:
        debug.stop_debug_server()
    else:
        debug._WORKER_SERVER.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
