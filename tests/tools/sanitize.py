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
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
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
# One thread, nothing unsafe, and gigabytes of simulated ranks: nothing to find there.
SIMULATED = "bootstrap::simulator"
# The functions of std behind the names that tsan_std.c uses, by the end of their mangled names.
WRAPPED = {
    "MUTEX_LOCK": r"5mutex5futex\w*14lock_contended",
    "RWLOCK_READ": r"6rwlock5futex\w*14read_contended",
    "RWLOCK_WRITE": r"6rwlock5futex\w*15write_contended",
    "CONDVAR_WAIT": r"7condvar5futex\w*4wait",
    "CONDVAR_WAIT_TIMEOUT": r"7condvar5futex\w*12wait_timeout",
    "ONCE_CALL": r"4once5futex\w*4Once4call",
}


def say(step: str, text: str) -> None:
    """The closing line of a step; run_all.py counts its words."""
    print(f"sanitize: {step}: {text}", flush=True)


def environment(step: str, flags: list[str], **more: str) -> dict[str, str]:
    """What cargo needs to build with `flags`, in a folder that nothing else uses."""
    # build/sanitize/: other flags in the common folder would build everything anew each time.
    return {
        **os.environ,
        "RUSTC_BOOTSTRAP": "1",
        "RUSTFLAGS": " ".join(flags),
        "CARGO_TARGET_DIR": str(BUILD / step),
        **more,
    }


def rust_tests(step: str, flags: list[str], skipped: list[str], **options: str) -> bool:
    """Runs the Rust tests, built with `flags`; `skipped` are parts of names of those left out."""
    packages = [word for crate in CRATES for word in ("-p", f"ferrocomm-{crate}")]
    command = ["cargo", "test", "--locked", "--no-fail-fast", "--target", TARGET, *packages]
    command += ["--", *(word for name in skipped for word in ("--skip", name))]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(step, flags, **options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        passed, failed, reports = 0, 0, 0
        for line in process.stdout:
            print(line, end="", flush=True)
            if result := re.match(r"test result: .* (\d+) passed; (\d+) failed", line):
                passed, failed = passed + int(result[1]), failed + int(result[2])
            reports += line.startswith("SUMMARY: ")
    bad = failed + reports
    say(step, f"{passed} passed, {bad} failed ({reports} of them reports)")
    return process.returncode == 0 and bad == 0 and passed > 0


def address() -> bool:
    """Faults of memory, and leaks."""
    return rust_tests(
        "address",
        ["-Zsanitizer=address"],
        [SIMULATED],
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
    # Programs are interpreted by one thread, too.
    skipped = [SIMULATED, "collectives::tests"]
    return rust_tests("thread", flags, skipped, TSAN_OPTIONS=options)


def fuzz(seconds: int) -> bool:
    """Arbitrary bytes; what is found lies in build/sanitize/found."""
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
    say("fuzz", f"{len(FUZZED) - len(bad)} passed, {len(bad)} failed")
    return not bad


def valgrind(library: Path | None) -> bool:
    """The C tests with every access checked, inside the engine as well."""
    if library is None:
        raise SystemExit("valgrind: name the folder of libferrocomm.so with --library")
    if shutil.which("valgrind") is None:
        say("valgrind", "1 skipped: it is not there; install the Debian package valgrind")
        return True
    under = (
        "valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "
        f"--show-leak-kinds=definite --suppressions={TOOLS / 'valgrind.supp'}"
    )
    command = [ROOT / "tests" / "c" / "run.sh", library, BUILD / "c-valgrind"]
    result = subprocess.run(command, env={**os.environ, "RUN_UNDER": under}, check=False)
    ok = result.returncode == 0
    say("valgrind", "1 passed" if ok else "1 failed")
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
