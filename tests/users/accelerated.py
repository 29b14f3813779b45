"""Hugging Face Accelerate: accumulated gradients, clipping, gathered metrics, objects, saved state."""

from __future__ import annotations

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator, utils
from job import Report, batch, check_served, digest, run_as_script
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(batches: int) -> TensorDataset:
    parts = [batch(step, 0) for step in range(batches)]
    return TensorDataset(*(torch.cat(column) for column in zip(*parts, strict=True)))


def objects(report: Report) -> None:
    rank = dist.get_rank()
    report("gathered objects", utils.gather_object([rank]))
    report("padded", utils.pad_across_processes(torch.ones(rank + 1)).tolist())
    sent = [rank]
    utils.broadcast_object_list(sent)
    report("broadcast object", sent)


def save_and_load(accelerator: Accelerator) -> None:
    folder = [tempfile.mkdtemp(prefix="accelerate_") if accelerator.is_main_process else None]
    utils.broadcast_object_list(folder)
    accelerator.save_state(folder[0])
    accelerator.wait_for_everyone()
    accelerator.load_state(folder[0])
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder[0])


def main(report: Report) -> None:
    utils.set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    check_served()
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shuffled = torch.Generator().manual_seed(0)
    loader = DataLoader(data(9), batch_size=8, shuffle=True, generator=shuffled)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            report(f"loss {epoch}.{step}", accelerator.reduce(loss.detach(), "mean").item())
    rows = sum(len(accelerator.gather_for_metrics(model(x).detach())) for x, _ in loader)
    report("rows evaluated", rows)
    objects(report)
    save_and_load(accelerator)
    report("parameters", digest(accelerator.unwrap_model(model).parameters()))
    accelerator.end_training()


if __name__ == "__main__":
    run_as_script(main, make_world=False)
