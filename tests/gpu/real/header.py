"""Compares `rust/nccl-sys/src/bindings.rs` with an nccl.h, by a C program compiled against it.

    python header.py FOLDER

Sizes and offsets of the structs, values of the enums and constants, as far as both know them: the
bindings are of one version, the header is of the NCCL that torch brought. Needs no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINDINGS = ROOT / "rust/nccl-sys/src/bindings.rs"
HINTS = ROOT / "rust/nccl/src/hints.rs"

# Bytes of the types that the structs are made of; all are aligned to their size.
BYTES = {"usize": 8, "u64": 8, "c_uint": 4, "c_int": 4, "f32": 4}

# They say which version a header is of, or how many names there are in it.
OF_A_VERSION = re.compile(r"NCCL_(MAJOR|MINOR|PATCH|SUFFIX|VERSION_CODE)|ncclNum\w+")

# What nccl.h wants of CUDA's header.
STUB = """#include <stddef.h>
#define CUDART_VERSION 13000
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
"""


@dataclass(frozen=True)
class Struct:
    """A struct of the bindings: its size and where its fields are."""

    name: str
    size: int
    offsets: dict[str, int]


def structs(text: str) -> Iterator[Struct]:
    """The structs of the bindings, laid out as C does it. Those of others' types are left out."""
    aliases = {old: new for new, old in re.findall(r"^pub type (\w+) = (\w+);", text, re.M)}
    for name, body in re.findall(r"^pub struct (nccl\w+) \{\n(.*?)^\}", text, re.M | re.S):
        fields = re.findall(r"^    pub (\w+): (.*),$", body, re.M)
        offsets: dict[str, int] = {}
        end = widest = 0
        for field, kind in fields:
            array = re.fullmatch(r"\[.*c_char; (\d+)usize\]", kind)
            pointer = kind.startswith("*") or kind == "cudaEvent_t"
            size = int(array[1]) if array else 8 if pointer else BYTES.get(kind.split("::")[-1], 0)
            if size == 0:
                break
            step = 1 if array else size
            offsets[field] = -(-end // step) * step
            end = offsets[field] + size
            widest = max(widest, step)
        if fields and len(offsets) == len(fields):
            yield Struct(aliases.get(name, name), -(-end // widest) * widest, offsets)


def config_bytes(version: int) -> int | None:
    """What the engine puts down as ncclConfig_t's size for an NCCL of this version, where that is
    not the size of the bindings' own."""
    text = HINTS.read_text()
    for major, minor, size in re.findall(r"Version::new\((\d+), (\d+), 0\), (\w+[^)]*)\)", text):
        if version >= int(major) * 10_000 + int(minor) * 100:
            return int(size) if size.isdigit() else None
    return 24


def find_header() -> Path | None:
    """The nccl.h of the wheel beside torch, else the system's."""
    places = [Path("/usr/include/nccl.h"), Path("/usr/local/include/nccl.h")]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        places.insert(0, Path(folder) / "nccl/include/nccl.h")
    return next((place for place in places if place.is_file()), None)


def cuda_headers(work: Path) -> Path:
    """A folder with what nccl.h wants of CUDA: the wheels' headers are not whole."""
    stub = work / "stub"
    stub.mkdir(exist_ok=True)
    (stub / "cuda_runtime.h").write_text(STUB)
    for name in ("cuda_fp16.h", "cuda_bf16.h"):
        (stub / name).touch()
    return stub


def struct_body(header: str, name: str) -> str | None:
    """What stands between a struct's braces in the header."""
    match = re.search(rf"typedef struct \w* *\{{([^{{}}]*)\}} *{name} *;", header)
    return match[1] if match else None


class Comparison:
    """The numbers of the bindings, and the C program that prints the header's."""

    def __init__(self, bindings: str, header: str) -> None:
        self.expected: dict[str, int] = {}
        self.lines: list[str] = []
        self.unknown: list[str] = []
        version = self.version(header)
        for struct in structs(bindings):
            body = struct_body(header, struct.name)
            if body is None:
                self.unknown.append(struct.name)
                continue
            known = [field for field in struct.offsets if re.search(rf"\b{field}\b", body)]
            for field in known:
                goal = f"offsetof({struct.name}, {field})"
                self.add(goal, goal, struct.offsets[field])
            size: int | None = struct.size
            if struct.name == "ncclConfig_t":
                size = config_bytes(version) or size
            elif len(known) < len(struct.offsets):
                size = None
            if size is not None:
                self.add(f"sizeof({struct.name})", f"sizeof({struct.name})", size)
        numbers = re.findall(r"pub const (\w+): \w+ = (?:\w+\()?(-?\d+)\)?;", bindings)
        for name, value in numbers:
            if OF_A_VERSION.fullmatch(name):
                continue
            if re.search(rf"\b{name}\b", header):
                self.add(name, name, int(value))
            else:
                self.unknown.append(name)

    @staticmethod
    def version(header: str) -> int:
        """The header's version, as NCCL's number for it."""
        match = re.search(r"#define NCCL_VERSION_CODE (\d+)", header)
        return int(match[1]) if match else 0

    def add(self, name: str, expression: str, value: int) -> None:
        """A number to compare."""
        self.expected[name] = value
        self.lines.append(f'    printf("%s = %lld\\n", "{name}", (long long)({expression}));')

    def program(self) -> str:
        """The C program."""
        includes = "#include <stddef.h>\n#include <stdio.h>\n#include <nccl.h>\n"
        return includes + "int main(void) {\n" + "\n".join(self.lines) + "\n    return 0;\n}\n"

    def differences(self, output: str) -> list[str]:
        """Where the program prints other numbers."""
        found = dict(re.findall(r"^(.*) = (-?\d+)$", output, re.M))
        wrong = []
        for name, value in self.expected.items():
            # Constants may be written as unsigned in one of the two.
            if name not in found or (int(found[name]) - value) % (1 << 32) != 0:
                wrong.append(f"{name} is {found.get(name)}, bindings have {value}")
        return wrong


def main() -> int:
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    header = find_header()
    if header is None:
        print("DETAIL no nccl.h beside torch or in /usr/include")
        return 77
    text = header.read_text()
    comparison = Comparison(BINDINGS.read_text(), text)
    source, program = work / "header.c", work / "header"
    source.write_text(comparison.program())
    compiler = shlex.split(os.environ.get("CC", "cc"))
    folders = ["-I", str(header.parent), "-isystem", str(cuda_headers(work))]
    command = [*compiler, "-std=gnu11", *folders, "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=25)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    wrong = comparison.differences(done.stdout)
    version = comparison.version(text)
    said = f"{len(comparison.expected) - len(wrong)} of {len(comparison.expected)} numbers agree"
    said += f" with the nccl.h of {version}, {len(comparison.unknown)} names are not in it"
    print("DETAIL " + "; ".join([said, *wrong]))
    return 1 if wrong or not comparison.expected else 0


if __name__ == "__main__":
    sys.exit(main())
