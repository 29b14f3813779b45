"""Importing: in either order the engine serves; an extension that does not fit says so once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fresh import run_fresh

import torchcomms
from torchcomms import _fit

SERVED = """
    {imports}
    import sys, tempfile, threading
    assert threading.active_count() == 1
    from torch.distributed import distributed_c10d
    assert distributed_c10d._TORCHCOMM_AVAILABLE
    import torch.distributed.config as config
    config.use_torchcomms = True
    folder = tempfile.mkdtemp()
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/s", rank=0, world_size=1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    import torchcomms
    (group,) = {{g["served_by"] for g in torchcomms.engine_info()["groups"]}}
    print(group, tensor.tolist())
    # destroyed by nobody: the end of the process must be quiet all the same
"""
ORDERS = {
    "torch first": "import torch, torch.distributed as dist",
    "torchcomms first": "import torchcomms, torch, torch.distributed as dist",
    "hooks first": "import torchcomms.hooks, torch, torch.distributed as dist",
    "extension first": "import torchcomms._comms, torch, torch.distributed as dist",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_engine_serves_in_every_import_order(order):
    done = run_fresh(SERVED.format(imports=ORDERS[order]))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ferrocomm [1.0, 1.0, 1.0]\n"
    assert "rror" not in done.stderr, done.stderr


def copy_of_package(folder: Path, build_info: str, *, with_extension: bool) -> Path:
    """The package's Python files, and a note of what the extension was built for."""
    target = folder / "torchcomms"
    target.mkdir()
    for found in Path(_fit.__file__).parent.rglob("*.py"):
        if found.name == "_build_info.py":
            continue
        place = target / found.relative_to(Path(_fit.__file__).parent)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(found, place)
    (target / "_build_info.py").write_text(build_info)
    if with_extension:
        (target / "_comms.py").write_text("raise SystemExit('the extension was loaded')\n")
    return folder


REPORT = """
    import sys
    sys.path.insert(0, sys.argv[1])
    # an editable install finds the package by a finder of its own, before any path
    sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
    {imports}
    from torch.distributed import distributed_c10d
    print(distributed_c10d._TORCHCOMM_AVAILABLE)
    try:
        import torchcomms
    except ImportError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("first", ["import torch", "import sys"])
def test_an_extension_for_another_torch_is_not_loaded(tmp_path, first):
    folder = copy_of_package(tmp_path, "TORCH = '2.3'\nVERSION = '0'\n", with_extension=True)
    done = run_fresh(REPORT.format(imports=first), str(folder))
    assert done.returncode == 0, done.stderr
    available, error = done.stdout.strip().splitlines()
    assert available == "False"
    assert error.startswith("ImportError")
    for text in (done.stderr, error):
        assert "built for torch 2.3" in text
        assert "pip install --no-build-isolation ." in text
    assert done.stderr.count("torchcomms cannot be used") == 1, done.stderr


def test_an_extension_that_cannot_be_loaded_is_reported(tmp_path):
    torch_minor = _fit.minor(_fit.running_torch())
    build_info = f"TORCH = '{torch_minor}'\nVERSION = '0'\n"
    folder = copy_of_package(tmp_path, build_info, with_extension=False)
    done = run_fresh(REPORT.format(imports="import torch"), str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "False"
    assert done.stderr.count("torchcomms cannot be used") == 1, done.stderr
    assert "_comms" in done.stderr


def test_versions_agree():
    info = torchcomms.engine_info()
    assert info["package"] == info["engine"] == torchcomms.__version__
    assert info["torch"]["built_for"] == _fit.built_for() == _fit.minor(info["torch"]["running"])
    json.dumps(info)


def test_minor():
    assert _fit.minor("2.15.0+cu132") == "2.15"
    assert _fit.minor("2.16.0a0+git1234") == "2.16"


TIDY_END = """
    import sys, torch, torch.distributed as dist, torchcomms
    from datetime import timedelta
    import torch.distributed.config as config
    config.use_torchcomms = True
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]
    pending = dist.irecv(torch.zeros(1), 0)
    if sys.argv[2] == "raise":
        raise ValueError("the script's own")
    sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("how", "code"), [("0", 0), ("7", 7), ("raise", 1)])
def test_the_exit_code_is_the_scripts_own(tmp_path, how, code):
    done = run_fresh(TIDY_END, str(tmp_path / "store"), how)
    assert done.returncode == code, done.stderr
    assert "terminate" not in done.stderr
    assert ("ValueError: the script's own" in done.stderr) == (how == "raise")


def test_modules_need_no_import_of_their_own():
    for name in ("device_mesh", "distwrap", "functional", "hooks", "objcol"):
        assert getattr(torchcomms, name).__name__ == f"torchcomms.{name}"
    with pytest.raises(AttributeError, match="'torchcomms' has no attribute 'nothing'"):
        _ = torchcomms.nothing
