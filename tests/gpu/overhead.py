"""What a call costs the host: CPU time of the calling thread, on the simulated GPU.

    python tests/gpu/overhead.py

Runs two ranks on torch's own nccl and on ours, one after the other, and prints the medians side by
side. The simulator's own share is in both; a real driver and a real NCCL cost something else.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

BLOCKS, CALLS, WARM_UP = 7, 100, 20


def rank() -> None:
    """One rank: the median time per call of each row, in microseconds."""
    import torch
    import torch.distributed as dist

    me, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    device = torch.device("cuda", me % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    small, whole = torch.ones(4).cuda(), torch.ones(4 * size).cuda()
    gathered, part = torch.empty_like(whole), torch.empty_like(small)
    messages = [torch.ones(4).cuda() for _ in range(8)]

    def batch() -> None:
        operations = []
        for give, take in zip(messages[:4], messages[4:], strict=True):
            operations.append(dist.P2POp(dist.isend, give, (me + 1) % size))
            operations.append(dist.P2POp(dist.irecv, take, (me - 1) % size))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    rows: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(small),
        "all_reduce, async and wait": lambda: dist.all_reduce(small, async_op=True).wait(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(gathered, small),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    if size > 1:
        rows["batch_isend_irecv of 8"] = batch
    found = {}
    for name, call in rows.items():
        blocks = []
        for _ in range(BLOCKS):
            for _ in range(WARM_UP):
                call()
            torch.cuda.synchronize()
            began = time.thread_time()
            for _ in range(CALLS):
                call()
            blocks.append((time.thread_time() - began) / CALLS * 1e6)
            torch.cuda.synchronize()
        found[name] = statistics.median(blocks)
    dist.destroy_process_group()
    print("FOUND " + json.dumps(found), flush=True)


def main() -> None:
    """Both sides, and the table."""
    import sim

    found = {}
    for side, switch in (("torch", "0"), ("ours", "1")):
        command = [sys.executable, str(Path(__file__)), "rank"]
        ended = sim.run(command, 2, {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": switch})
        match = re.search(r"^FOUND (.*)$", ended[0].output, re.MULTILINE)
        if match is None:
            raise SystemExit(ended[0].output)
        found[side] = json.loads(match[1])
    print(f"{'microseconds per call':30} {'torch':>8} {'ours':>8} {'ratio':>6}")
    for name, theirs in found["torch"].items():
        ours = found["ours"][name]
        print(f"{name:30} {theirs:8.1f} {ours:8.1f} {ours / theirs:6.2f}")


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
