"""A sequential model in stages on two devices, with and without balancing; prints what each device needs.

MALLOC_MMAP_THRESHOLD_=65536 python examples/pipeline.py
python examples/pipeline.py --accelerator cuda --batch-size 1024
python examples/pipeline.py --devices 3 --schedule 1f1b --micro-batches 6

A convolutional net reads scikit-learn's digits, enlarged to the 32 × 32 pixels in colour of CIFAR-10. Early layers
have large activations and few parameters, so that stages of equally many layers, or of equally many parameters, need
unequal memory; `balance="activations"` measures what each layer keeps for backward. The loss is the same in each row.
"""

from __future__ import annotations

import argparse
import itertools
import re
from pathlib import Path
from typing import Any

import torch
from digits import digits
from stratagem_pipeline import PipelineStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem


class Block(nn.Sequential):
    """Two convolutions; `shrink` halves height and width before them."""

    def __init__(self, before: int, after: int, shrink: bool) -> None:
        first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        super().__init__(nn.MaxPool2d(2) if shrink else nn.Identity(), first, nn.ReLU(), second, nn.ReLU())


class Sequential(stratagem.Module):
    """The pipelined module is the one `nn.Sequential` in it; nothing else is said about stages."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        channels = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width]
        blocks = [Block(a, b, shrink=a < b) for a, b in itertools.pairwise(channels)]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))
        self.net = nn.Sequential(Block(3, width, shrink=False), *blocks, head)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        images = F.interpolate(images, size=32).expand(-1, 3, -1, -1)
        loss = F.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class PeakMemory(stratagem.Callback):
    """Knows, after a fit, by how many MB each rank's memory had grown at its highest since the first step."""

    def __init__(self) -> None:
        self.before, self.grown_mb = 0, list[int]()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if trainer.device.type == "cpu":
            Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        else:
            torch.get_device_module(trainer.device).reset_peak_memory_stats(trainer.device)
        self.before = peak_bytes(trainer.device)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        grown = (peak_bytes(trainer.device) - self.before) // 2**20
        self.grown_mb = trainer.collectives.gather_objects(grown) or []

    def state_dict(self) -> dict[str, Any]:
        return {"grown_mb": self.grown_mb}  # comes back from rank 0's process

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.grown_mb = state["grown_mb"]


def peak_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return torch.get_device_module(device).max_memory_allocated(device)
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--schedule", default="gpipe")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=2)
    arguments = parser.parse_args()

    count, size = len(Sequential().net), arguments.devices
    equally_many = [count // size + (i < count % size) for i in range(size)]
    pipelines: dict[str, dict[str, Any]] = {
        "one device": {},
        "equally many layers": {"balance": equally_many},
        "balanced": {"balance": "activations"},
        "and checkpointing": {"balance": "activations", "activation_checkpointing": True},
    }
    table = [f"{'peak growth of memory':<22}" + "".join(f"   device {i}" for i in range(size))]
    for name, options in pipelines.items():
        schedule = {"schedule": arguments.schedule, "micro_batches": arguments.micro_batches}
        torch.manual_seed(1)
        model, memory = Sequential(arguments.width), PeakMemory()
        trainer = stratagem.Trainer(
            strategy=PipelineStrategy(**schedule, **options) if options else "single",
            accelerator=arguments.accelerator,
            devices=size if options else 1,
            max_steps=arguments.max_steps,
            callbacks=[memory],
            logger=False,
            enable_checkpointing=False,
            seed=1,
        )
        trainer.fit(model, DataLoader(digits()[0], arguments.batch_size, shuffle=True, drop_last=True))
        loss = trainer.callback_metrics["train_loss"]
        table.append(
            f"{name:<22}" + "".join(f"{mb:>8,} MB" for mb in memory.grown_mb) + f"   loss {loss:.4f}"
        )
    print(*table, sep="\n")
