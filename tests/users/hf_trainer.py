"""The Trainer of Hugging Face transformers: a small language model, trained and evaluated."""

from __future__ import annotations

import tempfile

import torch
import transformers
from job import Report, check_served, digest, run_as_script
from torch.utils.data import Dataset


class Tokens(Dataset):
    """Sequences in which each token follows from the one before."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, 64, (rows, 1), generator=generator)
        self.rows = (first + 7 * torch.arange(24)) % 64

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main(report: Report) -> None:
    transformers.set_seed(1)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory(prefix="trainer_") as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=6,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
            full_determinism=False,
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=Tokens(64, 1),
            eval_dataset=Tokens(16, 2),
        )
        check_served()
        trainer.train()
        for entry in trainer.state.log_history:
            if "loss" in entry:
                report(f"loss {entry['step']}", entry["loss"])
                report(f"norm {entry['step']}", float(entry["grad_norm"]))
        report("evaluated loss", trainer.evaluate()["eval_loss"])
    report("parameters", digest(model.parameters()))


if __name__ == "__main__":
    run_as_script(main, make_world=False)
