"""Runs what finds faults that tests alone do not see, each for a short while.

    python tests/tools/sanitize.py [--seconds N] [--library FOLDER] [STEP ...]

Steps: address and thread run the Rust tests under AddressSanitizer and ThreadSanitizer, fuzz gives
the readers of what strangers send N seconds of arbitrary bytes each, valgrind runs the C tests on
the engine as it ships (it needs the folder of libferrocomm.so). Without steps: all of them.

The compiler is the stable one, asked for its unstable options; std stays as it comes, so
`tsan_std.c` and `tsan.supp` tell ThreadSanitizer what it cannot see of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ROOT / "tests" / "tools"
BUILD = ROOT / "build" / "sanitize"
TARGET = "x86_64-unknown-linux-gnu"
CRATES = ["kernels", "core", "host", "engine", "capi"]
FUZZED = ["frame", "wire", "machine", "greeting"]
COVERAGE = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "--cfg=fuzzing",
]
# Seconds for one program of tests: a watchdog for a hang on a busy machine, not a measure.
LIMIT = 900.0
# The functions of std behind the names that tsan_std.c uses, by the end of their mangled names.
WRAPPED = {
    "MUTEX_LOCK": r"5mutex5futex\w*14lock_contended",
    "RWLOCK_READ": r"6rwlock5futex\w*14read_contended",
    "RWLOCK_WRITE": r"6rwlock5futex\w*15write_contended",
    "CONDVAR_WAIT": r"7condvar5futex\w*4wait",
    "CONDVAR_WAIT_TIMEOUT": r"7condvar5futex\w*12wait_timeout",
    "ONCE_CALL": r"4once5futex\w*4Once4call",
}


def say(step: str, text: str, start: float) -> None:
    """The closing line of a step; run_all.py counts its words."""
    print(f"sanitize: {step}: {text} in {time.monotonic() - start:.0f} s", flush=True)


def environment(step: str, flags: list[str]) -> dict[str, str]:
    """What cargo needs to build with `flags`, in a folder that nothing else uses."""
    # build/sanitize/: other flags in the common folder would build everything anew each time.
    return {
        **os.environ,
        "RUSTC_BOOTSTRAP": "1",
        # Tests that repeat themselves do so less often.
        "RUSTFLAGS": " ".join([*flags, "--cfg=sanitized"]),
        "CARGO_TARGET_DIR": str(BUILD / step),
    }


def built_tests(step: str, flags: list[str]) -> list[tuple[str, Path, Path]]:
    """Builds the Rust tests: name, folder of the crate, and program of each."""
    packages = [word for crate in CRATES for word in ("-p", f"ferrocomm-{crate}")]
    command = ["cargo", "test", "--locked", "--no-run", "--tests", "--target", TARGET, *packages]
    command += ["--message-format=json-render-diagnostics"]
    output = subprocess.check_output(command, cwd=ROOT, env=environment(step, flags), text=True)
    found = []
    for line in output.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            name = f"{folder.name} {message['target']['name']}"
            found.append((name, folder, Path(message["executable"])))
    return found


@dataclass
class Outcome:
    """What the Rust tests of one program came to."""

    passed: int = 0
    failed: int = 0
    reports: int = 0
    slowest: list[tuple[float, str]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)

    def read(self, line: str) -> None:
        """Takes what a line of the program says."""
        if result := re.match(r"test result: .* (\d+) passed; (\d+) failed", line):
            self.passed, self.failed = int(result[1]), int(result[2])
        elif ended := re.match(r"test (\S+) .*\.\.\. .*<([\d.]+)s>", line):
            self.slowest.append((float(ended[2]), ended[1]))
            self.running.discard(ended[1])
        elif long := re.match(r"test (\S+) has been running for over", line):
            self.running.add(long[1])
        self.reports += line.startswith("SUMMARY: ")


def run_tests(folder: Path, program: Path, options: dict[str, str]) -> Outcome:
    """Runs one program of tests. What does not end in LIMIT seconds has failed."""
    command = [str(program), "--report-time", "-Zunstable-options"]
    outcome = Outcome()
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "RUSTC_BOOTSTRAP": "1", **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        guard = threading.Timer(LIMIT, process.kill)
        guard.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            outcome.read(line)
        guard.cancel()
    if process.returncode and not outcome.failed + outcome.reports:
        outcome.failed += 1
        late = ", ".join(sorted(outcome.running)) or "no test was long"
        print(f"{program.name} ended with {process.returncode}; longer than a minute: {late}")
    return outcome


def rust_tests(step: str, flags: list[str], **options: str) -> bool:
    """Runs the Rust tests, built with `flags`."""
    start = time.monotonic()
    total = Outcome()
    lines = []
    programs = built_tests(step, flags)
    built = time.monotonic() - start
    for name, folder, program in programs:
        begun = time.monotonic()
        outcome = run_tests(folder, program, options)
        total.passed += outcome.passed
        total.failed += outcome.failed
        total.reports += outcome.reports
        line = f"{step}, {name}: {outcome.passed} of {outcome.passed + outcome.failed} tests, "
        line += f"{outcome.reports} reports, {time.monotonic() - begun:.0f} s"
        for seconds, test in sorted(outcome.slowest, reverse=True)[:3]:
            line += f"; {test} {seconds:.0f} s" if seconds >= 5 else ""
        lines.append(line)
    print("\n".join([f"{step}: built in {built:.0f} s", *lines]))
    bad = total.failed + total.reports
    say(step, f"{total.passed} passed, {bad} failed ({total.reports} of them reports)", start)
    return bad == 0 and total.passed > 0


def address() -> bool:
    """Faults of memory, and leaks."""
    return rust_tests(
        "address",
        ["-Zsanitizer=address"],
        # A small quarantine: the simulator allocates much, and the default keeps gigabytes of it.
        ASAN_OPTIONS="quarantine_size_mb=32:detect_leaks=1",
        LSAN_OPTIONS=f"suppressions={TOOLS / 'lsan.supp'}:print_suppressions=0",
    )


def std_symbols() -> dict[str, str]:
    """The mangled names of std's slow paths, by what tsan_std.c calls them."""
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
    libraries = Path(sysroot, "lib", "rustlib", TARGET, "lib")
    std = next(libraries.glob("libstd-*.so"))
    names = subprocess.check_output(["nm", "-D", "--defined-only", std], text=True)
    found = {}
    for name, pattern in WRAPPED.items():
        match = re.search(rf"T (\w*{pattern})$", names, re.MULTILINE)
        if match is None:
            message = f"std of this compiler has no {name}; look for it with: nm -D {std}"
            raise SystemExit(message)
        found[name] = match[1]
    return found


def thread() -> bool:
    """Races."""
    symbols = std_symbols()
    BUILD.mkdir(parents=True, exist_ok=True)
    shim = BUILD / "tsan_std.o"
    names = [f"-D{name}={symbol}" for name, symbol in symbols.items()]
    compiler = os.environ.get("CC", "cc")
    subprocess.check_call([compiler, "-O1", "-c", TOOLS / "tsan_std.c", "-o", shim, *names])
    flags = ["-Zsanitizer=thread", "-Cunsafe-allow-abi-mismatch=sanitizer", f"-Clink-arg={shim}"]
    flags += [f"-Clink-arg=-Wl,--wrap={symbol}" for symbol in symbols.values()]
    options = f"suppressions={TOOLS / 'tsan.supp'} history_size=4"
    return rust_tests("thread", flags, TSAN_OPTIONS=options)


def fuzz(seconds: int) -> bool:
    """Arbitrary bytes; what is found lies in build/sanitize/found."""
    start = time.monotonic()
    folder = ROOT / "fuzz"
    flags = ["-Zsanitizer=address", *COVERAGE]
    variables = environment("fuzz", flags)
    command = ["cargo", "build", "--locked", "--release", "--target", TARGET]
    subprocess.check_call(command, cwd=folder, env=variables)
    found = BUILD / "found"
    found.mkdir(parents=True, exist_ok=True)
    bad = []
    for name in FUZZED:
        with tempfile.TemporaryDirectory() as fresh:
            command = [
                str(BUILD / "fuzz" / TARGET / "release" / name),
                fresh,
                str(folder / "corpus" / name),
                f"-max_total_time={seconds}",
                "-timeout=10",
                "-rss_limit_mb=1024",
                "-malloc_limit_mb=64",
                f"-artifact_prefix={found}/{name}-",
                "-print_final_stats=1",
            ]
            if subprocess.run(command, check=False).returncode != 0:
                bad.append(name)
    for name in bad:
        print(f"{name}: the input is in {found}; once mended, keep it in fuzz/corpus/{name}")
    say("fuzz", f"{len(FUZZED) - len(bad)} passed, {len(bad)} failed", start)
    return not bad


def valgrind(library: Path | None) -> bool:
    """The C tests with every access checked, inside the engine as well."""
    if library is None:
        raise SystemExit("valgrind: name the folder of libferrocomm.so with --library")
    start = time.monotonic()
    if shutil.which("valgrind") is None:
        say("valgrind", "1 skipped: it is not there; install the Debian package valgrind", start)
        return True
    under = (
        "valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "
        f"--show-leak-kinds=definite --suppressions={TOOLS / 'valgrind.supp'}"
    )
    command = [ROOT / "tests" / "c" / "run.sh", library, BUILD / "c-valgrind"]
    result = subprocess.run(command, env={**os.environ, "RUN_UNDER": under}, check=False)
    ok = result.returncode == 0
    say("valgrind", "1 passed" if ok else "1 failed", start)
    return ok


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="address thread fuzz valgrind")
    parser.add_argument("--seconds", type=int, default=30, help="for each fuzzed reader")
    parser.add_argument("--library", type=Path, help="folder of libferrocomm.so")
    chosen = parser.parse_args()
    steps: dict[str, Callable[[], bool]] = {
        "address": address,
        "thread": thread,
        "fuzz": lambda: fuzz(chosen.seconds),
        "valgrind": lambda: valgrind(chosen.library),
    }
    unknown = [name for name in chosen.steps if name not in steps]
    if unknown:
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(steps)}")
    outcomes = [steps[name]() for name in chosen.steps or steps]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
