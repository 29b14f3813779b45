"""`python -m torchcomms info` says what is installed and can run here; `bench` measures it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from torchcomms import _info
from torchcomms._bench import _command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchcomms", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, backends, transports, groups")
    info.add_argument("--json", action="store_true", help="the same as one JSON object")
    bench = commands.add_parser("bench", help="the engine beside gloo and MPI, on this machine")
    _command.add_arguments(bench)
    words = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser.parse_args(words)
    if chosen.command == "bench":
        return _command.run(chosen, words)
    facts = _info.collect()
    print(json.dumps(facts, indent=2) if chosen.json else _info.readable(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
