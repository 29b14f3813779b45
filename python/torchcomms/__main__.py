"""`python -m torchcomms`: what is installed and can run here, whether it works, and how fast.

Chooses the command; each is a module of its own. Must not know what a command does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from torchcomms import _info, _trace
from torchcomms._bench import _command
from torchcomms._selftest import _command as _selftest


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchcomms", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, backends, transports, groups")
    info.add_argument("--json", action="store_true", help="the same as one JSON object")
    selftest = commands.add_parser("selftest", help="starts ranks here and checks every operation")
    _selftest.add_arguments(selftest)
    bench = commands.add_parser("bench", help="the engine beside gloo and MPI, on this machine")
    _command.add_arguments(bench)
    trace = commands.add_parser("trace", help="flight recorder dumps as a table or a timeline")
    _trace.add_arguments(trace)
    words = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser.parse_args(words)
    if chosen.command == "bench":
        return _command.run(chosen, words)
    if chosen.command == "selftest":
        return _selftest.run(chosen)
    if chosen.command == "trace":
        return _trace.run(chosen)
    facts = _info.collect()
    print(json.dumps(facts, indent=2) if chosen.json else _info.readable(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
