"""What `--use capsule` adds to a step that isn't kept: python tests/benchmarks/capsule.py

The same steps of Trainer on the same data with and without it, in turns within one process: a language model of four
layers, convolutions on images, and a small model whose steps take milliseconds. Per model the median of the ratios of
neighbouring rounds, by the clock, what is added to the CPU time of the loop's thread, and what is written per step.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
WARM_UP = 3


class Language(nn.Module):
    """Four layers of width 256, a vocabulary of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)))[:, 0]


def images() -> nn.Module:
    widths = [(3, 32), (32, 64), (64, 64)]
    layers = [each for a, b in widths for each in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1000))


Case = tuple[Callable[[], nn.Module], Callable[[], Tensor], int, int]
"""Makes the model, one batch of inputs, samples per batch, steps of a round."""
CASES: dict[str, Case] = {
    "language model, 8 × 128 tokens": (Language, lambda: torch.randint(0, 1000, (8, 128)), 8, 12),
    "convolutions, 32 images of 3 × 128 × 128": (images, lambda: torch.randn(32, 3, 128, 128), 32, 12),
    "small, 64 rows of 128": (small, lambda: torch.randn(64, 128), 64, 600),
}


class Net(stratagem.Module):
    """Notes the time of its first and its last step that count."""

    def __init__(self, make: Callable[[], nn.Module], steps: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.steps, self.calls = make(), steps, 0
        self.began = self.ended = (0.0, 0.0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM_UP:
            self.began = time.perf_counter(), time.thread_time()
        elif self.calls == self.steps:
            self.ended = time.perf_counter(), time.thread_time()
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def fit(case: Case, plugins: list[str]) -> tuple[float, float]:
    """Milliseconds per step: by the clock, and of the loop's thread."""
    make, inputs, batch, steps = case
    torch.manual_seed(1)
    x = torch.cat([inputs()] * steps)
    data = DataLoader(TensorDataset(x, torch.zeros(len(x), dtype=torch.long)), batch)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            run_dir=folder,
            plugins=plugins,
        )
        net = Net(make, steps)
        with contextlib.redirect_stderr(nowhere):
            trainer.fit(net, data)
    wall, own = ((end - begin) / (steps - WARM_UP) * 1e3 for begin, end in zip(net.began, net.ended))
    return wall, own


def written(case: Case) -> float:
    """Kilobytes that a rank writes per step."""
    from stratagem_capsule.batches import encoded
    from stratagem_capsule.callback import _as_tensors
    from stratagem_capsule.files import write_batches

    from stratagem.sdk.loops import capture_rng

    _, inputs, batch, _ = case
    kept = encoded([inputs(), torch.zeros(batch, dtype=torch.long)], lambda tensor: tensor)
    record = {"batch": kept, "rng": _as_tensors(capture_rng(torch.device("cpu")))}
    with tempfile.TemporaryDirectory() as folder:
        return write_batches(Path(folder, "one"), [record]) / 1000


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"{ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    for name, case in CASES.items():
        if os.environ.get("BENCH_CASES", "") not in name:
            continue
        figures: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for index in range(ROUNDS + 1):
            for kept in (False, True) if index % 2 else (True, False):
                figures[kept].append(fit(case, ["capsule"] if kept else []))
        pairs = list(zip(figures[False][1:], figures[True][1:]))  # the first round warms up
        ratios = sorted(kept[0] / plain[0] for plain, kept in pairs)
        added = statistics.median(kept[1] - plain[1] for plain, kept in pairs)
        plain_ms = statistics.median(plain[0] for plain, _ in pairs)
        quarter = len(ratios) // 4
        print(
            f"{name}: a step {plain_ms:.2f} ms, ratio with capsules {statistics.median(ratios):.3f} (quartiles "
            f"{ratios[quarter]:.3f} and {ratios[-1 - quarter]:.3f}); the loop's thread {added * 1e3:+.0f} µs; "
            f"{written(case):.0f} kB a step and rank",
            flush=True,
        )


if __name__ == "__main__":
    main()
