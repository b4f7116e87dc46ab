"""What recording a training takes, for `stratagem diff`: python tests/benchmarks/diff.py

A transformer of four layers is trained for three steps in one process: plainly, and recorded. Printed are both runs'
peak memory, and the time of all that `stratagem diff` does for two records: two recorded runs, a third one with
another rounding, and the comparison. Then `stratagem diff` itself trains the model in one process and under `ddp` in
two, with six batches in three steps, and `stratagem fit` trains it without a record. Times and memory are those of
whole processes, memory that of the largest one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
width = 512
layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(4))
model = nn.Sequential(nn.Embedding(8000, width), *layers, nn.Linear(width, 8000))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    tokens = torch.randint(0, 8000, (4, 128), generator=torch.Generator().manual_seed(step))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TARGET = """
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Net(stratagem.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(4))
        self.model = nn.Sequential(nn.Embedding(8000, width), *layers, nn.Linear(width, 8000))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (tokens,) = batch
        return nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> DataLoader:
        tokens = torch.randint(0, 8000, (24, 128), generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(tokens), batch_size=4)
"""


def run(*command: str) -> tuple[float, float]:
    """Run a command. Returns its seconds and its peak memory in MiB."""
    return measured(*command)[:2]


def measured(*command: str) -> tuple[float, float, float]:
    """Run a command. Returns its seconds, the peak memory of its largest process in MiB, and seconds of CPU."""
    began = time.perf_counter()
    process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *command])
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - began, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        plain = run(str(program))
        record = ["-m", "stratagem_diff", "record", "--out"]
        a = run(*record, f"{folder}/a", str(program))
        b = run(*record, f"{folder}/b", str(program))
        rounding = run(*record, f"{folder}/r", "--rounding", str(program))
        compared = run("-m", "stratagem", "diff", f"{folder}/a", f"{folder}/b", "--rounding", f"{folder}/r")
        (Path(folder) / "net.py").write_text(TARGET)
        target = f"{folder}/net.py:Net"
        whole = measured(
            *("-m", "stratagem", "diff", target, "--accelerator", "cpu"),
            *("--against", "ddp", "--against", "devices=2"),
        )
        fit = run(
            *(
                "-m",
                "stratagem",
                "fit",
                target,
                "--accelerator",
                "cpu",
                "--strategy",
                "single",
                "--devices",
                "1",
            ),
            *("--max-steps", "3", "--run-dir", f"{folder}/run", "--set", "trainer.accumulate_grad_batches=2"),
            *("--set", "trainer.enable_checkpointing=false"),
        )
        size = sum(file.stat().st_size for file in Path(folder, "a").rglob("*") if file.is_file())
    print(f"plain run: {plain[0]:.1f} s, {plain[1]:.0f} MiB")
    print(f"recorded run: {a[0]:.1f} s, {a[1]:.0f} MiB, {a[1] / plain[1]:.2f} times the plain run's")
    print(f"two records, rounding and comparison: {a[0] + b[0] + rounding[0] + compared[0]:.1f} s")
    print(f"comparison: {compared[0]:.1f} s, {compared[1]:.0f} MiB; a record has {size / 2**20:.0f} MiB")
    print(
        f"stratagem diff, one process against ddp on two: {whole[0]:.1f} s, {whole[2]:.1f} s of CPU, "
        f"{whole[1]:.0f} MiB, {whole[1] / fit[1]:.2f} times the {fit[1]:.0f} MiB of stratagem fit"
    )


if __name__ == "__main__":
    main()
