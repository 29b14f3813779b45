"""dist.all_reduce on stock gloo and on the engine, alternating in one run of the same processes.

    torchrun --standalone --nproc_per_node=2 tests/users/bench_all_reduce.py

Prints the median of both and their ratio for 8 bytes and 1 MiB, then one JSON object. A comparison,
not a test: the numbers hold for the machine and the moment.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import config

import torchcomms

SIZES = {8: 2000, 1 << 20: 300}  # bytes: calls of each
BLOCK = 20


def block(group: dist.ProcessGroup, tensor: torch.Tensor) -> list[float]:
    """Microseconds of each of a block of calls."""
    times = []
    for _ in range(BLOCK):
        start = time.perf_counter_ns()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def main() -> int:
    """One rank; returns the exit code."""
    torch.set_num_threads(1)
    # the switch decides when a group is made: one of each kind in the same processes
    config.use_torchcomms = False
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    stock = dist.group.WORLD
    config.use_torchcomms = True
    ours = dist.new_group()
    served = {g["group"]: g["served_by"] for g in torchcomms.engine_info()["groups"]}
    if (served[stock.group_name], served[ours.group_name]) != ("torch", "ferrocomm"):
        print(f"the groups are not served as they should be: {served}", file=sys.stderr)
        return 1
    results = []
    for size, calls in SIZES.items():
        tensor = torch.ones(size // 4)
        times: dict[str, list[float]] = {"stock": [], "ours": []}
        for number in range(calls // BLOCK + 1):
            for name, group in (("stock", stock), ("ours", ours)):
                measured = block(group, tensor)
                if number > 0:  # the first block of each connects and warms up
                    times[name] += measured
        medians = {name: statistics.median(t) for name, t in times.items()}
        results.append({"bytes": size, **medians, "ratio": medians["stock"] / medians["ours"]})
    if dist.get_rank() == 0:
        for result in results:
            print(
                f"all_reduce {result['bytes']:>8} B   stock gloo {result['stock']:>9.1f} us   "
                f"ferrocomm {result['ours']:>9.1f} us   {result['ratio']:.2f} times as fast"
            )
        print(json.dumps(results))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
