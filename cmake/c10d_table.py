"""The table of docs/c10d.md: each virtual method of c10d::Backend and Work, and what ours does.

    python cmake/c10d_table.py [--write]
    python cmake/c10d_table.py --read VERSION INCLUDE_FOLDER

The methods are read from torch's headers, those of every torch that cmake/torch_matrix.py has;
those of older ones, whose headers are not fetched for this, stand in c10d_older.json, where
`--read` puts them. The states come from cpp/*.hpp (an override works, where it is not there to
refuse) and from the notes below (what needs no override). A method that is in neither fails, and
so does a page that says something else.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import torch_matrix

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "c10d.md"
OLDER = Path(__file__).resolve().parent / "c10d_older.json"
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
        "supportsTimeEstimation": (BASE, "false"),
        "setSequenceNumberForGroup": (BASE, "numbers start at 0 on every rank"),
        "setGroupUid": (BASE, "kept"),
        "getBoundDeviceId": (BASE, "kept"),
        "setBoundDeviceId": (BASE, "kept"),
        "eagerConnectSingleDevice": (BASE, "nothing to do: links are there from the start"),
    },
    "Options": {},
    "Work": {
        "blockCurrentStream": (BASE, "waits as `synchronize` does"),
    },
}
# Overridden to raise that it is not supported.
REFUSED = {
    "Backend": {
        "merge": "not supported",
        "startTimeEstimate": "not supported: nothing here estimates times",
        "endTimeEstimate": "not supported: nothing here estimates times",
    },
    "Work": {},
    "Options": {},
}
# Said beside an override.
REMARKS = {
    "Backend": {
        "allreduce_sparse": "sums, on CPU; over when the call returns",
        "monitoredBarrier": "on CPU",
        "split": "a rank outside gets null",
        "isInitialized": "false while a reconfigurable communicator has no members",
        "shrink": "over the store of the group, also when ranks are gone",
        "registerOnCompletionHook": "one per group; times are of the host",
        "waitForPendingWorks": "and until hooks have been told",
        "getMemAllocator": "the one of `torchcomms.get_mem_allocator`",
        "allocateTensor": "in shared memory, or in NCCL's",
        "suspend": "on nccl; the host engine raises that it is not supported",
        "resume": "on nccl; the host engine raises that it is not supported",
        "reconfigure": "of a group made with `enable_reconfigure`",
        "get_reconfigure_handle": "of a group made with `enable_reconfigure`",
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
    if method in ours and method in REFUSED[name]:
        return RAISES, REFUSED[name][method]
    if method in ours:
        return WORKS, REMARKS[name].get(method, "")
    note = NOTES[name].get(method)
    if note is None:
        raise SystemExit(
            f"c10d::{name}::{method} is neither overridden in cpp/ nor explained in {__file__}"
        )
    return note


Methods = dict[str, list[str]]


def methods_by_class(headers: Path) -> Methods:
    folder = headers / "torch/csrc/distributed/c10d"
    return {name: methods_of(name, folder / file) for name, (file, _) in CLASSES.items()}


def table(name: str, versions: dict[str, Methods]) -> tuple[list[str], int]:
    ours = overridden(CLASSES[name][1])
    by_version = {version: methods.get(name, []) for version, methods in versions.items()}
    every = list(dict.fromkeys(m for methods in by_version.values() for m in methods))
    lines = [f"### c10d::{name}", "", f"| method | {' | '.join(versions)} | |"]
    lines.append("|---" * (len(versions) + 2) + "|")
    for method in sorted(every, key=str.lower):
        state, remark = state_of(name, method, ours)
        cells = [state if method in by_version[v] else "not there" for v in versions]
        lines.append(f"| `{method}` | {' | '.join(cells)} | {remark or 'as torch says'} |")
    return [*lines, ""], len(every)


def page(versions: dict[str, Methods]) -> tuple[str, int]:
    lines, count = [], 0
    for name in CLASSES:
        more, methods = table(name, versions)
        lines += more
        count += methods
    return "\n".join(lines), count


def minor(version: str) -> str:
    return version.rpartition(".")[0]


def remember(version: str, headers: Path) -> None:
    """Puts the methods of an older torch into the file."""
    known = json.loads(OLDER.read_text()) if OLDER.exists() else {}
    known[minor(version)] = methods_by_class(headers)
    OLDER.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page anew")
    parser.add_argument("--read", nargs=2, metavar=("VERSION", "FOLDER"), help="of an older torch")
    asked = parser.parse_args()
    if asked.read:
        remember(asked.read[0], Path(asked.read[1]))
        return 0
    versions: dict[str, Methods] = json.loads(OLDER.read_text())
    for version in torch_matrix.VERSIONS:
        headers = torch_matrix.installed_headers(version) or torch_matrix.wheel_headers(version)
        versions[minor(version)] = methods_by_class(headers)
    made, count = page(versions)
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
