"""Makes the environment of the jobs here: the one that `make setup` makes, and what they import.

    .venv/bin/python tests/users/prepare.py FOLDER

An environment of its own that sees the packages of the Python that runs this, torch among them,
without a copy: the tests' own environment stays as it is. Does nothing when it is up to date.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
STAMP = "users.stamp"


def site_packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def fingerprint() -> str:
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    return f"{sys.executable} {importlib.metadata.version('torch')} {wanted}"


def install(folder: Path) -> None:
    venv.create(folder, with_pip=False, clear=True)
    beside = sysconfig.get_path("platlib")
    # `addsitedir` reads the other environment's own .pth files: an editable install is one.
    (site_packages(folder) / "beside.pth").write_text(f"import site; site.addsitedir({beside!r})\n")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        # Whatever a package asks for, torch stays the one that the extension was built for.
        pins.write(f"torch=={importlib.metadata.version('torch').partition('+')[0]}\n")
        pins.flush()
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        pip += ["install", "--disable-pip-version-check", "--quiet", "--constraint", pins.name]
        subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)


def main() -> int:
    folder = Path(sys.argv[1])
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == fingerprint():
        return 0
    print(f"users: installing {REQUIREMENTS.name} into {folder} (some minutes)", flush=True)
    install(folder)
    stamp.write_text(fingerprint())
    return 0


if __name__ == "__main__":
    sys.exit(main())
