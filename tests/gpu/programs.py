"""What one rank does in the tests on the simulated GPU: `python programs.py [NAME...]`.

Each program asserts what it can know by itself and returns plain data, which the tests compare
between torch's own nccl and ours: the same program, the same simulator, one switch (`FC_SIDE`).
Rank and size come from RANK and WORLD_SIZE. Kernels cannot be launched on the simulator, so values
are made on the host and copied.
"""

from __future__ import annotations

import json
import sys
import time

import programs_collectives  # noqa: F401
import programs_streams  # noqa: F401
import programs_training  # noqa: F401
from programs_common import PROGRAMS, RANK, SIZE, meeting


def main() -> None:
    names = sys.argv[1:] or list(PROGRAMS)
    for name in names:
        began = time.monotonic()
        result = PROGRAMS[name]()
        print(f"TOOK {name} {time.monotonic() - began:.1f} s", flush=True)
        print(f"RESULT {name} {json.dumps(result)}", flush=True)
    # The server goes last.
    meeting().set(f"done {RANK}", "")
    if RANK == 0:
        meeting().wait([f"done {rank}" for rank in range(SIZE)])


if __name__ == "__main__":
    main()
