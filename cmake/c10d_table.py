"""The table of docs/c10d.md: each virtual method of c10d::Backend and Work, and what ours does.

    python cmake/c10d_table.py [--write]

The methods are read from torch's headers, those of every torch that cmake/torch_matrix.py has; the
states from cpp/*.hpp (an override works) and from the notes below (what needs no override, and what
raises). A method that is in neither fails, and so does a page that says something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import torch_matrix

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "c10d.md"
BEGIN, END = "<!-- begin: cmake/c10d_table.py -->", "<!-- end -->"
CLASSES = {
    "Backend": ("Backend.hpp", ["backend_wrapper.hpp"]),
    "Options": ("Backend.hpp", ["options.hpp"]),
    "Work": ("Work.hpp", ["work.hpp"]),
}
WORKS, FORWARDS, BASE, RAISES = "works", "torch forwards", "torch's own", "raises"

# Not overridden, because what the base class does is right.
NOTES = {
    "Backend": {
        "all_gather_single": (FORWARDS, "to `_allgather_base`"),
        "all_gather_single_coalesced": (FORWARDS, "to `allgather_into_tensor_coalesced`"),
        "gather_single": (FORWARDS, "to `gather_into_tensor`"),
        "reduce_scatter_single": (FORWARDS, "to `_reduce_scatter_base`"),
        "reduce_scatter_single_coalesced": (FORWARDS, "to `reduce_scatter_tensor_coalesced`"),
        "all_to_all_single": (FORWARDS, "to `alltoall_base`"),
        "supportsSplitting": (BASE, "false: true makes older torch split without a colour"),
        "isInitialized": (BASE, "true: a communicator is joined when it is made"),
        "supportsTimeEstimation": (BASE, "false"),
        "startTimeEstimate": (RAISES, "nothing here estimates times"),
        "endTimeEstimate": (RAISES, "nothing here estimates times"),
        "supportsShrinking": (BASE, "false"),
        "shrink": (RAISES, "not supported yet"),
        "supportsReconfigure": (BASE, "false: not supported yet"),
        "get_reconfigure_handle": (RAISES, "not supported yet"),
        "reconfigure": (RAISES, "not supported yet"),
        "supportsWindow": (BASE, "false: not supported yet"),
        "new_window": (RAISES, "not supported yet"),
        "supportsAbortHooks": (BASE, "false: not supported yet"),
        "registerAbortHook": (RAISES, "not supported yet"),
        "unregisterAbortHook": (RAISES, "not supported yet"),
        "supportsCompletionHooks": (BASE, "false: not supported yet"),
        "registerCompletionHook": (RAISES, "not supported yet"),
        "unregisterCompletionHook": (RAISES, "not supported yet"),
        "registerOnCompletionHook": (RAISES, "for torch's NCCL backend alone, says torch"),
        "waitForPendingWorks": (RAISES, "for torch's NCCL backend alone, says torch"),
        "setSequenceNumberForGroup": (BASE, "numbers start at 0 on every rank"),
        "merge": (RAISES, "not supported"),
        "setGroupUid": (BASE, "kept"),
        "getBoundDeviceId": (BASE, "kept"),
        "setBoundDeviceId": (BASE, "kept"),
        "eagerConnectSingleDevice": (BASE, "nothing to do: links are there from the start"),
        "getMemAllocator": (RAISES, "`torchcomms.get_mem_allocator` has it"),
        "allocateTensor": (RAISES, "`torchcomms.get_mem_allocator` has it"),
        "supportsTensorAlloc": (BASE, "false"),
        "suspend": (RAISES, "not supported"),
        "resume": (RAISES, "not supported"),
        "getMemoryStats": (RAISES, "not supported"),
        "addEphemeralTimeout": (BASE, "ignored"),
    },
    "Options": {"clone": (BASE, "sliced")},
    "Work": {
        "blockCurrentStream": (BASE, "waits as `synchronize` does"),
    },
}
# Said beside an override.
REMARKS = {
    "Backend": {
        "allreduce_sparse": "sums, on CPU; over when the call returns",
        "monitoredBarrier": "on CPU",
        "split": "a rank outside gets null",
        "enableCollectivesTiming": "from the call to the end, as the host sees it",
    },
    "Work": {
        "getDuration": "after `enableCollectivesTiming`",
        "getTimeout": "of the operation, with extensions",
    },
    "Options": {},
}


def body_of(name: str, text: str) -> str:
    """The class body of a header; nested classes are cut out."""
    start = re.search(rf"(?:class|struct)[^;{{]*\b{name}\b[^;{{]*{{", text)
    if start is None:
        raise SystemExit(f"no class {name} in the header")
    depth, position = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
    body = text[start.end() : position - 1]
    if name != "Options":
        body = re.sub(r"struct\s+TORCH_API\s+Options\b.*?\n  };", "", body, flags=re.S)
    return body


def methods_of(name: str, header: Path) -> list[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.S)
    found = re.findall(r"\bvirtual\b[^;{(]*?\b(\w+)\s*\(", body_of(name, text))
    return list(dict.fromkeys(method for method in found if method != name))


def overridden(files: list[str]) -> set[str]:
    text = "".join((ROOT / "cpp" / file).read_text() for file in files)
    return set(re.findall(r"\b(\w+)\s*\([^;{}]*?\)\s*(?:const\s*)?override", text))


def state_of(name: str, method: str, ours: set[str]) -> tuple[str, str]:
    if method in ours:
        return WORKS, REMARKS[name].get(method, "")
    note = NOTES[name].get(method)
    if note is None:
        raise SystemExit(
            f"c10d::{name}::{method} is neither overridden in cpp/ nor explained in {__file__}"
        )
    return note


def table(name: str, headers: dict[str, Path]) -> tuple[list[str], int]:
    file, sources = CLASSES[name]
    ours = overridden(sources)
    by_version = {
        version: methods_of(name, folder / "torch/csrc/distributed/c10d" / file)
        for version, folder in headers.items()
    }
    every = list(dict.fromkeys(m for methods in by_version.values() for m in methods))
    short = [version.rpartition(".")[0] for version in headers]
    lines = [f"### c10d::{name}", "", f"| method | {' | '.join(short)} | |"]
    lines.append("|---" * (len(short) + 2) + "|")
    for method in sorted(every, key=str.lower):
        state, remark = state_of(name, method, ours)
        cells = [state if method in by_version[v] else "not there" for v in headers]
        lines.append(f"| `{method}` | {' | '.join(cells)} | {remark or 'as torch says'} |")
    return [*lines, ""], len(every)


def page(headers: dict[str, Path]) -> tuple[str, int]:
    lines, count = [], 0
    for name in CLASSES:
        more, methods = table(name, headers)
        lines += more
        count += methods
    return "\n".join(lines), count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page anew")
    asked = parser.parse_args()
    headers = {
        version: torch_matrix.installed_headers(version) or torch_matrix.wheel_headers(version)
        for version in torch_matrix.VERSIONS
    }
    made, count = page(headers)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}\n\n{made}\n{END}{after}"
    if asked.write:
        PAGE.write_text(fresh)
    elif fresh != text:
        print(
            "docs/c10d.md is not what `python cmake/c10d_table.py --write` makes", file=sys.stderr
        )
        return 1
    print(f"c10d table: {count} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
