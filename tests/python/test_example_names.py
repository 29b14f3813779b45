"""What counts as the use of a public name in an example of the pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import example_names

COMM = "import torchcomms\ncomm = torchcomms.new_comm('gloo', 'cpu')\n"


@pytest.fixture(scope="module")
def surface() -> example_names.Surface:
    return example_names.Surface()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("comm.send(x, 1)", "TorchComm.send"),
        ("batch = comm.batch_op_create()\nbatch.send(x, 1)", "BatchSendRecv.send"),
        ("with comm.register_post_hook(f) as hook:\n    hook.remove()", "RemovableHandle.remove"),
        ("comm.barrier(async_op=True).cancel()", "TorchWork.cancel"),
        ("torchcomms.AllReduceOptions(hints={})", "OperationOptions.hints"),
        (
            "match x:\n    case torchcomms.SendPreHookArgs(peer=p):\n        pass",
            "SendPreHookArgs.peer",
        ),
        (
            "class B(torchcomms.TorchCommBackend):\n    def abort(self): ...",
            "TorchCommBackend.abort",
        ),
        ("from torchcomms import functional as f\nf.gather(comm, x, 0)", "functional.gather"),
    ],
)
def test_a_use_is_found(surface, code, name):
    assert f"torchcomms.{name}" in surface.required
    assert f"torchcomms.{name}" not in example_names.used_names(surface, COMM)
    assert f"torchcomms.{name}" in example_names.used_names(surface, COMM + code)


@pytest.mark.parametrize(
    "code",
    [
        "other.split([0])",
        "# comm.split([0])",
        "text = 'comm.split'",
        "from torchcomms import objcol, distwrap\ndistwrap.split([0])",
        "comm.barrier().split()",
    ],
)
def test_what_only_looks_like_one_is_not(surface, code):
    assert "torchcomms.TorchComm.split" not in example_names.used_names(surface, COMM + code)
    assert "torchcomms.objcol" not in example_names.used_names(surface, COMM + code)


def test_what_no_example_uses_is_named():
    missing = example_names.unused([COMM])
    assert "torchcomms.TorchComm.split" in missing
    assert "torchcomms.new_comm" not in missing
