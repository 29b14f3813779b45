"""PyTorch Lightning with its DDP strategy: synced logs, validation, gathering, checkpoints."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from job import Report, batch, check_served, digest, run_as_script
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """A regression that reports each step's loss."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
        self.report = report
        self.steps = 0

    def on_fit_start(self) -> None:
        check_served()

    def training_step(self, rows: Any, _index: int) -> torch.Tensor:
        loss = F.mse_loss(self.net(rows[0]), rows[1])
        mean = self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")
        self.report(f"loss {self.steps}", mean.item())
        self.steps += 1
        self.log("train", loss, sync_dist=True)
        return loss

    def validation_step(self, rows: Any, _index: int) -> None:
        self.log("validation", F.mse_loss(self.net(rows[0]), rows[1]), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        ranks = self.all_gather(torch.tensor([float(self.global_rank)]))
        self.report(f"gathered {self.current_epoch}", ranks.flatten().tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(report: Report) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    lightning.seed_everything(3, verbose=False)
    parts = [batch(step, 0) for step in range(8)]
    data = TensorDataset(*(torch.cat(column) for column in zip(*parts, strict=True)))
    with tempfile.TemporaryDirectory(prefix="lightning_") as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=int(os.environ["WORLD_SIZE"]),
            strategy="ddp",
            max_epochs=2,
            logger=False,
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
        )
        module = Module(report)
        trainer.fit(module, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, 8))
        report("validation loss", float(trainer.callback_metrics["validation"]))
    report("parameters", digest(module.parameters()))


if __name__ == "__main__":
    run_as_script(main, make_world=False)
