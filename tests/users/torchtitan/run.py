"""Trains TorchTitan's debug models on CPU, on stock gloo and on Ferrocomm, and compares losses.

    python tests/users/torchtitan/run.py [CASE ...]

Ferrocomm runs through `--comm.mode torchcomms` and without the stand-ins for what stock gloo
refuses. See docs/torchtitan.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 600
STEPS = 5
TOLERANCE = 1e-6


def parallel(**degrees: int) -> list[str]:
    return [
        argument
        for name, degree in degrees.items()
        for argument in (f"--parallelism.{name}_degree", str(degree))
    ]


LLAMA = ["--module", "llama3", "--config", "llama3_debugmodel"]
EXPERTS = ["--module", "deepseek_v3", "--config", "deepseek_v3_debugmodel"]


@dataclass(frozen=True)
class Case:
    """One way to spread a model over ranks."""

    ranks: int
    model: list[str]
    arguments: list[str]


CASES = {
    "fsdp": Case(2, LLAMA, []),
    "ddp": Case(2, LLAMA, parallel(data_parallel_replicate=2, data_parallel_shard=1)),
    "tp": Case(2, LLAMA, parallel(tensor_parallel=2)),
    "pp": Case(2, LLAMA, parallel(pipeline_parallel=2)),
    "cp": Case(2, LLAMA, parallel(context_parallel=2)),
    "ep": Case(2, EXPERTS, parallel(expert_parallel=2)),
    "fsdp+tp": Case(4, LLAMA, parallel(tensor_parallel=2)),
    "fsdp+pp": Case(4, LLAMA, parallel(pipeline_parallel=2)),
    "hsdp": Case(4, LLAMA, parallel(data_parallel_replicate=2, data_parallel_shard=2)),
    "fsdp+ep": Case(4, EXPERTS, parallel(expert_parallel=2)),
    "checkpoint": Case(2, LLAMA, ["--checkpoint.enable", "--checkpoint.interval", "3"]),
}


def environment(engine: str, losses: Path, scratch: Path) -> dict[str, str]:
    needs_stand_ins = "1" if engine == "stock" else "0"
    return os.environ | {
        "EXPECT_SERVED_BY": "torch" if engine == "stock" else "ferrocomm",
        "TITAN_FORCE_SUM": needs_stand_ins,
        "TITAN_A2A_SHIM": needs_stand_ins,
        "LOSS_FILE": str(losses),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(scratch / "datasets"),
        "WANDB_MODE": "disabled",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def command_of(case: Case, engine: str, dump: Path, steps: int) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={case.ranks}"]
    command += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", str(HERE / "trainer.py")]
    command += [*case.model, "--dump_folder", str(dump), "--training.steps", str(steps)]
    command += ["--training.seq_len", "256", "--training.local_batch_size", "2"]
    command += ["--training.disable_cuda_graphs", "--debug.seed", "42", "--debug.deterministic"]
    command += ["--debug.no-enable_structured_logging", *case.arguments]
    return command + (["--comm.mode", "torchcomms"] if engine == "ours" else [])


def train(
    name: str, engine: str, scratch: Path, steps: int = STEPS
) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of the steps that this call trained."""
    case = CASES[name]
    place = scratch / f"{name}.{engine}"
    place.mkdir(exist_ok=True)
    losses = place / f"losses.{steps}"
    done = subprocess.run(
        command_of(case, engine, place, steps),
        cwd=scratch,
        env=environment(engine, losses, scratch),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT,
        check=False,
    )
    # Under pipeline parallel the last rank has the loss; otherwise all have the same.
    last = Path(f"{losses}.{case.ranks - 1}")
    if done.returncode != 0 or not last.exists():
        raise SystemExit(f"{name} on {engine} failed:\n{done.stdout[-8000:]}")
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    return [(line["step"], line["loss"], line["norm"]) for line in lines]


def same(ours: list[tuple[int, float, float]], stock: list[tuple[int, float, float]], ranks: int):
    if ranks <= 2:
        return ours == stock
    return len(ours) == len(stock) and all(
        mine[0] == theirs[0]
        and all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(mine[1:], theirs[1:], strict=True))
        for mine, theirs in zip(ours, stock, strict=True)
    )


def compare(name: str, scratch: Path) -> bool:
    ranks = CASES[name].ranks
    found = {}
    for engine in ("stock", "ours"):
        start = time.monotonic()
        found[engine] = train(name, engine, scratch)
        if name == "checkpoint":
            # Goes on from what the first call has saved.
            found[engine] += train(name, engine, scratch, STEPS + 2)[-2:]
        seconds = time.monotonic() - start
        step, loss, norm = found[engine][-1]
        print(
            f"{name:<11} {ranks:>5}  {engine:<6} {step:>4} {loss!r:<20} {norm!r:<20} {seconds:>6.1f}"
        )
    agree = same(found["ours"], found["stock"], ranks)
    if not agree:
        for mine, theirs in zip(found["ours"], found["stock"], strict=False):
            print(f"    step {mine[0]}: stock {theirs[1:]}, ours {mine[1:]}")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    asked = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    chosen = asked.cases or list(CASES)
    print("case        ranks  engine step loss                 gradient norm        wall s")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="titan_") as folder:
        scratch = Path(folder)
        subprocess.run([sys.executable, str(HERE / "make_data.py"), folder], check=True)
        for name in chosen:
            failed += not compare(name, scratch)
    print(f"torchtitan: {len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
