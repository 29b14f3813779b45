"""Compares the pages with the code, and runs their examples.

    python tests/tools/check_docs.py FOLDER_OF_LIBFERROCOMM

Links lead somewhere, and the site is built without a warning; variables and statuses are those of
the code; a block of Python or C whose first line names a file runs as two ranks and prints what the
`text` block after it shows. Those of README.md run under torchrun, as it says there. Together they
use every public name of the package.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import example_names
import example_ranks
import settings

ROOT = Path(__file__).resolve().parent.parent.parent
RANKS = 2
LIMIT = 120.0  # seconds for one example; a guard against a hang

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?:#|/\*) (\w+\.(?:py|c))\b")
PREFIXES = "FERROCOMM|TORCHCOMMS?|TORCHELASTIC|MASTER|GLOO|NCCL|LOCAL|WORLD|OMPI|MPI|PMI|PALS|SLURM"
IN_CODE = re.compile(rf'"((?:{PREFIXES})_[A-Z_]+)"')
# Read by others (torch, make, CMake), or without a prefix to be found by: RANK, the user's folders.
READ_ELSEWHERE = {
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "RANK",
    "HOME",
    "XDG_CACHE_HOME",
    "CC",
    "CXX",
    "PYTHON",
    "VENV",
}


@dataclass(frozen=True)
class Example:
    """A program on a page and what it is to print."""

    page: Path
    name: str
    code: str
    output: str


def pages() -> list[Path]:
    """All pages."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def dead_links(page: Path) -> Iterator[str]:
    """Links of a page to files that are not there."""
    for target in LINK.findall(page.read_text()):
        if "://" not in target and not (page.parent / target).exists():
            yield f"{page.name}: the link to {target} leads nowhere"


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, as sites write them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}


def dead_anchors(page: Path) -> Iterator[str]:
    """Links of a page to headings that are not there."""
    for target, anchor in ANCHOR.findall(FENCE.sub("", page.read_text())):
        other = page.parent / target if target else page
        if "://" not in target and other.suffix == ".md" and anchor not in anchors(other):
            yield f"{page.name}: {target}#{anchor} is no heading"


def sources() -> Iterator[Path]:
    """Code that may read the environment; tests set variables of their own."""
    for folder, pattern in (("rust", "*.rs"), ("python", "*.py"), ("cpp", "*.cpp")):
        for path in (ROOT / folder).rglob(pattern):
            parts = path.relative_to(ROOT).parts
            # The simulated GPU is a test's, and has a page of its own for its variables.
            if "simgpu" not in parts and not any(part.startswith("test") for part in parts):
                yield path


def differences(what: str, page: str, documented: set[str], real: set[str]) -> Iterator[str]:
    """What a page lacks and what it has too much."""
    for name in sorted(real - documented):
        yield f"{page}: {what} {name} is missing"
    for name in sorted(documented - real):
        yield f"{page}: there is no {what} {name}"


def wrong_variables() -> Iterator[str]:
    """Variables that the tables and the code do not share, and a page that is not the tables'."""
    found = {name for path in sources() for name in IN_CODE.findall(path.read_text())}
    real = found | READ_ELSEWHERE
    yield from differences("variable", "tests/tools/settings.py", settings.variables(), real)
    if settings.PAGE.read_text() != settings.page():
        yield (
            "environment.md is not what tests/tools/settings.py makes: change the tables there, "
            "then `make docs`"
        )


def wrong_site() -> Iterator[str]:
    """What keeps the site from being built: a dead link or anchor, a page that is not in it."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
        built = run(build, ROOT)
    if built.returncode != 0:
        yield built.stderr


def wrong_statuses() -> Iterator[str]:
    """Statuses that the page and the C header do not share, with their numbers."""
    header = (ROOT / "include" / "ferrocomm.h").read_text()
    real = set(re.findall(r"#define (FC_ERR_\w+ \d+)$", header, re.MULTILINE))
    page = (ROOT / "docs" / "errors.md").read_text()
    documented = {
        f"{name} {number}" for name, number in re.findall(r"\| `(FC_ERR_\w+)` \| (\d+) \|", page)
    }
    yield from differences("status", "errors.md", documented, real)


def examples(page: Path) -> Iterator[Example]:
    """The programs of a page that have a name."""
    blocks = FENCE.findall(page.read_text())
    for (language, code), (next_language, output) in pairwise([*blocks, ("", "")]):
        named = NAME.match(code)
        if language in ("python", "c") and named:
            shown = output if next_language == "text" else ""
            yield Example(page, named.group(1), code, shown)


def unused_names() -> Iterator[str]:
    """Public names that no example uses."""
    codes = [made.code for page in pages() for made in examples(page) if made.name.endswith(".py")]
    for name in example_names.unused(codes):
        yield f"no example uses {name}"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with the environment a reader would have."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "FERROCOMM"))}
    return subprocess.run(
        ["timeout", str(LIMIT), *command],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def run_torchrun(source: Path) -> subprocess.CompletedProcess[str]:
    """Runs a Python example under torchrun."""
    # Each rank's output in a file of its own: under torchrun a line is written in two parts, and
    # those of two ranks may mix.
    logs = source.parent / "logs"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc_per_node={RANKS}", f"--log-dir={logs}", "--redirects=1"]
    done = run([*torchrun, source.name], source.parent)
    done.stdout = "".join(log.read_text() for log in sorted(logs.rglob("stdout.log")))
    return done


def run_c(source: Path, library: Path) -> subprocess.CompletedProcess[str]:
    """Builds a C example with the store of the C tests, and starts it once per rank."""
    program = source.with_suffix("")
    compile_it = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror"]
    for folder in (ROOT / "include", ROOT / "tests" / "c"):
        compile_it += ["-I", str(folder)]
    compile_it += [str(source), str(ROOT / "tests" / "c" / "file_store.c"), "-o", str(program)]
    compile_it += [f"-L{library}", "-lferrocomm", f"-Wl,-rpath,{library}"]
    compiled = run(compile_it, source.parent)
    if compiled.returncode != 0:
        return compiled
    # A shell that starts the ranks and fails when one of them does.
    ranks = " ".join(str(rank) for rank in range(RANKS))
    script = (
        f'set -e; mkdir store; for r in {ranks}; do ./{program.name} "$r" {RANKS} store & '
        'p="$p $!"; done; for i in $p; do wait "$i"; done'
    )
    return run(["sh", "-c", script], source.parent)


def wrong_output(example: Example, library: Path) -> Iterator[str]:
    """How an example's output differs from the page."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / example.name
        source.write_text(example.code)
        if source.suffix == ".c":
            done = run_c(source, library)
        elif example.page.name == "README.md":
            done = run_torchrun(source)
        else:
            done = example_ranks.run(source, RANKS, LIMIT)
    where = f"{example.page.name}, {example.name}"
    if not example.output:
        yield f"{where}: no text block says what it prints"
    if done.returncode != 0:
        yield f"{where}: ended with {done.returncode}:\n{done.stderr}"
    # Ranks print in any order.
    elif sorted(done.stdout.splitlines()) != sorted(example.output.splitlines()):
        yield f"{where}: printed\n{done.stdout}and not\n{example.output}"


def main() -> int:
    """Returns the exit code."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    library = Path(sys.argv[1]).resolve()
    checks = [
        (f"links of {page.name}", [*dead_links(page), *dead_anchors(page)]) for page in pages()
    ]
    checks.append(("site", list(wrong_site())))
    checks.append(("variables", list(wrong_variables())))
    checks.append(("statuses", list(wrong_statuses())))
    checks.append(("names in examples", list(unused_names())))
    for page in pages():
        for example in examples(page):
            checks.append((f"{example.name} of {page.name}", list(wrong_output(example, library))))
    for name, faults in checks:
        print(f"{'FAILED' if faults else 'ok':<7}{name}")
        for fault in faults:
            print(fault)
    failed = sum(bool(faults) for _, faults in checks)
    print(f"docs: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
