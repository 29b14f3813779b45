"""One rank of the self-test: `python -m torchcomms._selftest._rank DEVICE STORE`.

Prints a line of JSON for each check on standard output, which is a pipe to `_command`. Must not
know what a check does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch._C._distributed_c10d import FileStore

from torchcomms._selftest import _checks
from torchcomms._selftest._wrong import Wrong


def main() -> int:
    """Runs the checks; 1 when the communicator could not be made or was lost on the way."""
    device, path = torch.device(sys.argv[1]), sys.argv[2]
    # One thread each: the ranks share this machine's cores.
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    size = int(os.environ["TORCHCOMM_SIZE"])
    make = _checks.communicators(device, FileStore(path, size))
    try:
        comm = make("main")
    except (RuntimeError, ValueError, NotImplementedError) as error:
        report("joining", "", str(error))
        return 1
    total = sum(1 for _ in _checks.checks(comm, make))
    say({"total": total, "backend": comm.get_backend(), "transport": json.loads(comm.info())})
    for check in _checks.checks(comm, make):
        try:
            check.run()
        except NotImplementedError as error:
            # Raised before anything moves, on every rank: what NCCL does not have.
            report(check.line, check.name, str(error), skipped=comm.get_backend() != "gloo")
        except Wrong as error:
            report(check.line, check.name, str(error))
        except (RuntimeError, ValueError) as error:
            report(check.line, check.name, f"{type(error).__name__}: {error}")
            if comm.state() != "ready":
                return 1
        else:
            report(check.line, check.name, None)
    comm.finalize()
    return 0


def report(line: str, name: str, fault: str | None, skipped: bool = False) -> None:
    """Tells what came of a check."""
    say({"line": line, "name": name, "fault": fault, "skipped": skipped})


def say(fact: dict[str, Any]) -> None:
    """Writes one line at once."""
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    sys.exit(main())
