"""What it takes to gather sharded stages of a pipeline once per batch, and once per micro-batch.

python tests/benchmarks/gathered_stages.py

Four ranks train with `pipeline=2+shard=2` on the simulated device, whose allocator counts memory as a GPU's does.
It says nothing of speed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from stratagem_fsdp import ShardAxis
from stratagem_mesh import compose
from stratagem_pipeline import PipelineAxis
from stratagem_sharding.traffic import watch_traffic
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

WIDTH, LAYERS, BATCH, MICRO_BATCHES, STEPS = 512, 16, 16, 4, 4


class Stack(stratagem.Module):
    """A stack of equal layers, small batches, and SGD, so that parameters and gradients take most of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(2 * STEPS * BATCH, WIDTH)), BATCH)


class Watch(stratagem.Callback):
    """Writes what a rank's last step took: peak memory, and bytes by collective.

    Args:
        folder: gets a file per rank.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self.end: Any = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEPS - 1:
            torch.accelerator.synchronize()
            torch.accelerator.reset_peak_memory_stats()
            self.end = watch_traffic(lambda collective, size: self.sent.update({collective: size}))

    def on_train_batch_end(self, trainer: Any, module: Any, output: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEPS - 1:
            torch.accelerator.synchronize()
            self.end()
            found = {"peak": torch.accelerator.max_memory_allocated(), "sent": self.sent}
            Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(found))


def measure(gather_per_micro_batch: bool) -> tuple[int, int]:
    """Return the largest peak of a rank, and the bytes that a rank has of gathered parameters, in one step."""
    axes = (
        PipelineAxis(2, micro_batches=MICRO_BATCHES),
        ShardAxis(2, gather_per_micro_batch=gather_per_micro_batch),
    )
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy=compose(*axes),
            accelerator="sim",
            devices=4,
            max_epochs=1,
            callbacks=[Watch(folder)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            run_dir=folder,
        ).fit(Stack())
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(4)]
    gathered = [sum(size for name, size in each["sent"].items() if "gather" in name) for each in found]
    return max(each["peak"] for each in found), max(gathered)


def main() -> None:
    """Print a table."""
    os.environ["STRATAGEM_SIM_DEVICES"] = "4"
    size = sum(each.numel() for each in Stack().parameters()) * 4 / 2
    print(f"a stage has {size / 2**20:.1f} MiB of parameters; {MICRO_BATCHES} micro-batches\n")
    print("| gathered | peak memory of a rank | gathered in a step |\n| --- | --- | --- |")
    for name, option in (("once per batch", False), ("per micro-batch", True)):
        peak, gathered = measure(option)
        print(f"| {name} | {peak / 2**20:.1f} MiB | {gathered / 2**20:.1f} MiB |", flush=True)


if __name__ == "__main__":
    main()
