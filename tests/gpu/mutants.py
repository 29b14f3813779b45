"""Faults put into the nccl engine on purpose: each has to be found by the programs of this folder.

    python tests/gpu/mutants.py [NAME...]

A copy of the Rust sources gets one fault at a time and is built; two ranks then run `programs.py`
or a failure with the faulty library. Prints a table, and fails when a fault goes unnoticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import sim

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("MUTANTS_BUILD", sim.ROOT / "build" / "mutants"))
SECONDS = 60


@dataclass
class Mutant:
    name: str
    file: str
    old: str
    new: str
    words: tuple[str, ...] = ("programs.py",)
    # what rank 0 prints when all is well
    says: str = ""


MUTANTS = [
    Mutant("wrong root of a broadcast", "plan.rs", "root: root.get(),", "root: 0,"),
    Mutant(
        "an asynchronous operation does not wait for the caller's stream",
        "comm.rs",
        "            issuing.before.hold(stream)?;\n",
        "",
    ),
    # That operations wait for one another across streams cannot be missed here: the simulated NCCL,
    # as the real one, sees to it as well.
    Mutant(
        "a synchronous operation runs beside the caller's stream",
        "comm.rs",
        "Mode::Sync => callers,",
        "Mode::Sync => self.side.handle(),",
    ),
    Mutant(
        "a wait does not hold the stream",
        "group.rs",
        "        flight.end.hold(stream)",
        "        drop(flight);\n        Ok(())",
    ),
    Mutant(
        "a group is not closed",
        "issuing.rs",
        "let result = unsafe { end() };",
        "let result = { let _left_open = end; ncclResult_t::ncclSuccess };",
    ),
    Mutant(
        "counts in bytes instead of elements",
        "plan.rs",
        "count: input.bytes / wire.size,",
        "count: input.bytes,",
    ),
    Mutant(
        "maximum for minimum",
        "reductions.rs",
        "plain(ncclRedOp_t::ncclMin),\n        Re",
        "plain(ncclRedOp_t::ncclMax),\n        Re",
    ),
    Mutant(
        "the end is recorded before the operation",
        "comm.rs",
        "Deadline::after(call.timeout))?;\n        end.record(stream)?;\n        let flight",
        "Deadline::after(call.timeout))?;\n        let flight",
    ),
    Mutant(
        "every rank of a split passes the same key",
        "group.rs",
        "int(own)?, part)",
        "0, part)",
        ("failing.py", "polled"),
    ),
    Mutant(
        "the clock of a time-out never starts",
        "flights.rs",
        "if self.start.has_come()? {",
        "if false {",
        ("failing.py", "time_out"),
        "time-out: the operation did not end on the device in time",
    ),
    Mutant(
        "asynchronous errors are not looked at",
        "handle.rs",
        "        match unsafe { async_result(self.nccl, comm) } {\n            Ok(",
        "        match Ok(ncclResult_t::ncclSuccess) {\n            Ok(",
        ("failing.py", "killed"),
        "FAILED DistBackendError peer lost",
    ),
    Mutant(
        "a captured operation runs beside the capture",
        "comm.rs",
        "if capturing {\n                self.capture",
        "if false {\n                self.capture",
    ),
]


def build(source: Path) -> str:
    """Builds libferrocomm from `source`; gives the compiler's complaint, if there is one."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "ferrocomm-capi"]
    quick = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    done = subprocess.run(
        command,
        cwd=source,
        env={**os.environ, **quick, "CARGO_TARGET_DIR": str(BUILD / "target")},
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else done.stderr


def found_by(mutant: Mutant, folder: Path) -> str:
    """What notices the fault: the last line of a rank that failed; empty when all went well."""
    extra = {
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1",
        "LD_LIBRARY_PATH": str(BUILD / "target" / "release"),
    }
    words = mutant.words
    command = [sys.executable, str(HERE / words[0]), *words[1:]]
    for rank in sim.run(command, 2, extra, SECONDS, folder):
        if rank.killed:
            return f"no end within {SECONDS} s"
        expected = -9 if words[1:] == ("killed",) and rank.rank == 1 else 0
        if rank.status != expected:
            lines = [line for line in rank.output.splitlines() if "Error" in line]
            return (lines or ["status " + str(rank.status)])[-1].strip()[-110:]
        if rank.rank == 0 and mutant.says not in rank.output:
            return f"rank 0 does not say {mutant.says!r}"
    return ""


def has_its_place(mutant: Mutant) -> bool:
    """Whether the source has what the mutant replaces."""
    return mutant.old in (sim.ROOT / "rust" / "nccl" / "src" / mutant.file).read_text()


def main() -> int:
    folder = sim.build()
    source = BUILD / "source"
    missed = 0
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    for mutant in chosen:
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        for name in ("Cargo.toml", "Cargo.lock"):
            shutil.copy2(sim.ROOT / name, source)
        shutil.copytree(sim.ROOT / "rust", source / "rust", ignore=shutil.ignore_patterns("simgpu"))
        file = source / "rust" / "nccl" / "src" / mutant.file
        text = file.read_text()
        if mutant.old not in text:
            print(f"{mutant.name}: the place is gone", flush=True)
            missed += 1
            continue
        file.write_text(text.replace(mutant.old, mutant.new))
        complaint = build(source)
        verdict = complaint[-300:] if complaint else found_by(mutant, folder)
        missed += not verdict or bool(complaint)
        print(f"{mutant.name:62} {verdict or 'NOT FOUND'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
