"""TorchTitan's own trainer on CPU: what it lacks there, then its `main`.

TorchTitan 0.3.0 is made for accelerators. Three things have no counterpart on CPU, and are set
before its modules are imported that look for them:

1. the device: `torchtitan.tools.utils` takes the accelerator or else "cuda"; no option says cpu;
2. memory statistics and the like, which it asks of `torch.<device>`;
3. the backward of flex_attention: the same mask through scaled_dot_product_attention instead.

Two more stand in for what stock gloo refuses, and Ferrocomm does not need them:

4. PREMUL_SUM in reduce_scatter, which FSDP2 asks for: TITAN_FORCE_SUM=1 makes it SUM, the same
   number as the factor is 1;
5. all_to_all of lists with unequal tensors, which expert parallel sends: TITAN_A2A_SHIM=1 makes it
   all_to_all_single.

LOSS_FILE names a file that gets a line of JSON for each step: loss and gradient norm, every digit.
"""

from __future__ import annotations

import json
import os
import types
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan_utils


class CpuModule(types.ModuleType):
    """torch.cpu with the answers that torch.cuda gives."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu says "cpu", which barrier(device_ids=) does not take

    def get_device_name(self, _device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, _device: Any = None) -> Any:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return types.SimpleNamespace(name="cpu", total_memory=memory)

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def memory_stats(self, _device: Any = None) -> dict[str, int]:
        return {}


titan_utils.device_type = "cpu"
titan_utils.device_module = CpuModule("torchtitan_cpu")

import torchtitan.components.metrics as titan_metrics  # noqa: E402
import torchtitan.models.common.attention as titan_attention  # noqa: E402
from torch.nn.attention import flex_attention  # noqa: E402


def attend(q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **rest: Any):
    """flex_attention with a mask and nothing else."""
    assert rest["score_mod"] is None
    assert not rest["return_aux"].lse
    mask = flex_attention.create_mask(
        block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device=q.device
    )
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )
    return out, flex_attention.AuxOutput()


titan_attention.FlexAttention.compiled_flex_attn = staticmethod(attend)
# Not compiled: a mask is made once, the compiler takes longer.
titan_attention._compiled_create_block_mask = flex_attention.create_block_mask


def reduce_with_sum() -> None:
    import torch.distributed.fsdp._fully_shard._fsdp_collectives as collectives

    asked = collectives._get_gradient_divide_factors

    def always_sum(rs: Any, ar: Any, dtype: Any, device: str = "", factor: Any = None, _: Any = 0):
        return asked(rs, ar, dtype, device, factor, True)

    collectives._get_gradient_divide_factors = always_sum


def exchange_in_one_tensor() -> None:
    lists = dist.all_to_all

    def all_to_all(outputs: Any, inputs: Any, group: Any = None, async_op: bool = False) -> Any:
        if async_op:
            return lists(outputs, inputs, group=group, async_op=True)
        sent = torch.cat([tensor.reshape(-1) for tensor in inputs])
        counts = [tensor.numel() for tensor in outputs]
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [t.numel() for t in inputs], group=group)
        for tensor, part in zip(outputs, received.split(counts), strict=True):
            tensor.copy_(part.view_as(tensor))
        return None

    dist.all_to_all = all_to_all


def write_losses() -> None:
    shown = titan_metrics.MetricsProcessor.log

    def log(
        self: Any, step: int, loss: float, highest: float, norm: float, *rest: Any, **more: Any
    ):
        with open(f"{os.environ['LOSS_FILE']}.{os.environ['RANK']}", "a") as file:
            numbers = {"step": step, "loss": float(loss), "norm": float(norm)}
            file.write(json.dumps(numbers) + "\n")
        return shown(self, step, loss, highest, norm, *rest, **more)

    titan_metrics.MetricsProcessor.log = log


def check_served_at_exit() -> None:
    """Before the groups go away: they are served by whom EXPECT_SERVED_BY names."""
    expected = os.environ["EXPECT_SERVED_BY"]
    destroy = dist.destroy_process_group

    def looked_at(group: Any = None) -> None:
        import torchcomms

        # A mesh of one rank gets a group that pretends.
        groups = [
            g for g in torchcomms.engine_info()["groups"] if g["backend"] != "FakeProcessGroup"
        ]
        served = {entry["served_by"] for entry in groups}
        if group is None and served != {expected}:
            raise RuntimeError(f"expected {expected} to serve all of {groups}")
        destroy(group)

    dist.destroy_process_group = looked_at


if __name__ == "__main__":
    if os.environ["TITAN_FORCE_SUM"] == "1":
        reduce_with_sum()
    if os.environ["TITAN_A2A_SHIM"] == "1":
        exchange_in_one_tensor()
    write_losses()
    check_served_at_exit()
    from torchtitan.train import main

    main()
