"""Programs in C and the MPI libraries: finds or installs them, and builds the loops.

Everything that is missing is said in words and never fails the bench. Must not know what is
measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchcomms import _comms

Say = Callable[[str], None]

PACKAGES = ("openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev")
INSTALL_LIMIT = 600.0  # seconds; a package source that does not answer must not hold up the bench
COMPILE_LIMIT = 120.0
FLAGS = ("-std=c11", "-O2", "-pthread")


class Missing(Exception):
    """Something a system needs is not here; the text says what and how to get it."""


@dataclass(frozen=True)
class Mpi:
    """How to build for an MPI library and how to start its ranks."""

    compiler: list[str]
    libraries: list[str]
    launcher: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def sources() -> Path:
    """The folder of the loops in C.

    Raises:
        Missing: this is an installed package without the source tree.
    """
    tree = Path(__file__).resolve().parents[3]
    folder = tree / "tests" / "bench"
    if not (folder / "loops.c").exists():
        raise Missing(
            "the loops in C (tests/bench) are part of the source tree, which is not here: run "
            "`make bench` in a clone"
        )
    return folder


def compiler() -> str:
    """The C compiler.

    Raises:
        Missing: there is none.
    """
    name = os.environ.get("CC", "cc")
    if shutil.which(name.split()[0]) is None:
        raise Missing(f"there is no C compiler ({name}): install one (Debian: gcc) or set CC")
    return name


def build_engine_loops(folder: Path) -> Path:
    """The loops over libferrocomm."""
    where = sources()
    installed = Path(_comms.__file__).resolve().parent
    library = installed / "libferrocomm.so"
    headers = [installed / "include", where.parents[1] / "include"]
    header = next((path for path in headers if (path / "ferrocomm.h").exists()), None)
    if header is None or not library.exists():
        raise Missing(f"ferrocomm.h or {library} is not there: install the package again")
    return _compile(
        [*compiler().split(), *FLAGS, f"-I{header}"],
        [where / "loops.c", where / "side_ferrocomm.c", where.parent / "c" / "file_store.c"],
        [f"-L{installed}", "-lferrocomm", f"-Wl,-rpath,{installed}"],
        folder / "capi",
    )


def build_floors(folder: Path) -> Path:
    """The program that measures what the machine can do."""
    return _compile([*compiler().split(), *FLAGS], [sources() / "floors.c"], [], folder / "floors")


def build_mpi_loops(name: str, mpi: Mpi, folder: Path) -> Path:
    """The loops over an MPI library."""
    where = sources()
    return _compile(
        [*mpi.compiler, *FLAGS],
        [where / "loops.c", where / "side_mpi.c"],
        mpi.libraries,
        folder / name,
    )


def _compile(command: list[str], files: list[Path], libraries: list[str], out: Path) -> Path:
    done = subprocess.run(
        [*command, *map(str, files), *libraries, "-o", str(out)],
        capture_output=True,
        text=True,
        timeout=COMPILE_LIMIT,
        check=False,
    )
    if done.returncode != 0:
        raise Missing(f"{out.name} did not compile: {done.stderr.strip()[:600]}")
    return out


def find_mpi(say: Say, install: bool) -> dict[str, Mpi | Missing]:
    """Both MPI libraries, installed first where that is wanted and can be done."""
    private = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ferrocomm-bench-mpi"
    names = ("openmpi", "mpich")
    if not all(_on_the_path(name) or _in_folder(name, private) for name in names) and install:
        reason = _install(private, say)
    else:
        reason = "" if install else "installing was not wanted (--no-install)"
    return {name: _found(name, private, reason) for name in names}


def _found(name: str, private: Path, reason: str) -> Mpi | Missing:
    mpi = _on_the_path(name) or _in_folder(name, private)
    if mpi is not None:
        return mpi
    wanted = " ".join(package for package in PACKAGES if name in package)
    return Missing(f"{name} is not here: apt-get install {wanted}" + (reason and f" ({reason})"))


def _launcher(name: str, program: str) -> list[str]:
    if name == "mpich":
        return [program, "-launcher", "fork"]
    # the ranks choose their cores themselves, as those of every system do
    command = [program, "--bind-to", "none"]
    return [*command, "--allow-run-as-root"] if os.geteuid() == 0 else command


def _on_the_path(name: str) -> Mpi | None:
    wrapper, launcher = shutil.which(f"mpicc.{name}"), shutil.which(f"mpirun.{name}")
    if wrapper is None or launcher is None:
        return None
    return Mpi([wrapper], [], _launcher(name, launcher))


def _in_folder(name: str, root: Path) -> Mpi | None:
    """An MPI unpacked into a folder of its own: nothing in it knows where it is."""
    usr = root / "usr"
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    lib = usr / "lib" / triplet
    launcher = usr / "bin" / f"mpirun.{name}"
    if not launcher.exists() or shutil.which("cc") is None:
        return None
    own = lib / "openmpi" if name == "openmpi" else lib
    include = own / "include" if name == "openmpi" else usr / "include" / triplet / "mpich"
    libraries = own / "lib" if name == "openmpi" else own
    folders = [libraries, lib, *sorted(lib.glob("pmix*/lib"))]
    search = ":".join(map(str, folders))
    environment = {
        "LD_LIBRARY_PATH": search,
        "OPAL_PREFIX": str(usr),
        "PMIX_INSTALL_PREFIX": str(next(iter(sorted(lib.glob("pmix*"))), lib)),
        "PATH": f"{usr / 'bin'}:{os.environ.get('PATH', '')}",
    }
    link = "mpi" if name == "openmpi" else "mpich"
    linking = [f"-L{libraries}", f"-l{link}", f"-Wl,-rpath-link,{search}"]
    return Mpi(["cc", f"-I{include}"], linking, _launcher(name, str(launcher)), environment)


def _install(private: Path, say: Say) -> str:
    """Installs Debian's packages; returns why it could not."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get here to install it with"
    say(f"installing {' '.join(PACKAGES)} from Debian's packages")
    try:
        if os.geteuid() == 0:
            _install_as_root()
        else:
            _unpack(private)
    except (Missing, OSError, subprocess.TimeoutExpired) as error:
        say(f"they could not be installed: {error}")
        return f"installing failed: {str(error)[:200]}"
    return ""


def _apt(*arguments: str, folder: Path | None = None) -> str:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "-qq", *arguments],
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT,
        check=False,
        cwd=folder,
        env=environment,
    )
    if done.returncode != 0:
        raise Missing(f"apt-get {arguments[0]} said: {done.stderr.strip()[-300:]}")
    return done.stdout


def _install_as_root() -> None:
    wanted = ("install", "-y", "--no-install-recommends", *PACKAGES)
    try:
        _apt(*wanted)
    except Missing:
        # a fresh machine has no lists of packages
        _apt("update")
        _apt(*wanted)


def _unpack(private: Path) -> None:
    """Downloads what is not installed and unpacks it into a folder of this user's own."""
    private.mkdir(parents=True, exist_ok=True)
    listed = _apt(
        "-o", "Debug::NoLocking=1", "--print-uris", "install", "--no-install-recommends", *PACKAGES
    )
    names = [line.split()[1].split("_")[0] for line in listed.splitlines() if line.startswith("'")]
    if not names:
        raise Missing("apt-get has no list of these packages: run `apt-get update` as root")
    _apt("download", *names, folder=private)
    for package in private.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(private)], check=False, timeout=60)
        package.unlink()
