"""What `--use capsule` adds to a step that isn't kept: python tests/benchmarks/capsule.py

Within one fit, some steps are kept and some aren't, in turns, so that whatever else the machine does meets both
alike. Of a language model of four layers, of convolutions on images, and of a small model: what keeping a step takes
the loop's thread, the median of the ratios of neighbouring turns by the clock, and what is written per step.
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
from stratagem_capsule import Capsules
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem

PAIRS = int(os.environ.get("BENCH_PAIRS", "20"))
"""Of a turn with and a turn without."""


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
"""Makes the model, one batch of inputs, samples per batch, steps of a turn."""
CASES: dict[str, Case] = {
    "language model, 8 × 128 tokens": (Language, lambda: torch.randint(0, 1000, (8, 128)), 8, 4),
    "convolutions, 32 images of 3 × 128 × 128": (images, lambda: torch.randn(32, 3, 128, 128), 32, 4),
    "small, 64 rows of 128": (small, lambda: torch.randn(64, 128), 64, 50),
}


class Net(stratagem.Module):
    """Lets steps be kept in every second turn, and notes the times of turns."""

    def __init__(self, make: Callable[[], nn.Module], turn: int, capsules: Capsules) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.turn, self.calls, self.capsules = make(), turn, 0, capsules
        self.marks: list[tuple[float, float]] = []
        self.own_s, self.kept = 0.0, 0

    def on_train_start(self) -> None:
        keeping: Any = self.capsules._keeping
        keep, end = keeping._keep, keeping.end_batch
        keeping._keep, keeping.end_batch = self.timed(keep, 1), self.timed(end, 0)

    def timed(self, function: Callable[..., None], count: int) -> Callable[..., None]:
        def call(*args: Any) -> None:
            began = time.thread_time()
            function(*args)
            self.own_s, self.kept = self.own_s + time.thread_time() - began, self.kept + count

        return call

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls += 1
        if self.calls % self.turn == 0:
            self.marks.append((time.perf_counter(), time.thread_time()))
            # The order within a pair changes from pair to pair.
            number = self.calls // self.turn
            is_kept = (number % 2 == 1) != (number // 2 % 2 == 1)
            self.capsules._keeping._why_not = None if is_kept else "off"  # type: ignore[union-attr]  # it trains

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


Turns = list[tuple[float, float]]
"""Milliseconds per step: by the clock, and of the loop's thread."""


def turns(case: Case) -> tuple[Turns, Turns, float]:
    """Return turns without and with, and the microseconds that keeping a step takes the loop's thread."""
    make, inputs, batch, turn = case
    torch.manual_seed(1)
    steps = (2 * PAIRS + 1) * turn
    x = torch.cat([inputs() for _ in range(8)])
    samples = [(x[i % len(x)], torch.zeros((), dtype=torch.long)) for i in range(batch * steps)]
    capsules = Capsules(max_gib=1000)
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
            plugins=["capsule"],
            callbacks=[capsules],
        )
        net = Net(make, turn, capsules)
        with contextlib.redirect_stderr(nowhere):
            trainer.fit(net, DataLoader(samples, batch))  # type: ignore[arg-type]  # a list is a dataset
    found: tuple[Turns, Turns] = ([], [])
    for number, (begin, end) in enumerate(zip(net.marks, net.marks[1:]), 1):
        is_kept = (number % 2 == 1) != (number // 2 % 2 == 1)
        found[is_kept].append(((end[0] - begin[0]) / turn * 1e3, (end[1] - begin[1]) / turn * 1e3))
    return *found, net.own_s / net.kept * 1e6


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
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{PAIRS} pairs of turns, torch {torch.__version__}, Python {sys.version.split()[0]}, one thread")
    for name, case in CASES.items():
        if os.environ.get("BENCH_CASES", "") not in name:
            continue
        plain, kept, own = turns(case)
        ratios = sorted(with_it[0] / without[0] for without, with_it in zip(plain, kept))
        step, quarter = statistics.median(each[1] for each in plain), len(ratios) // 4
        print(
            f"{name}: {step:.1f} ms of CPU a step, keeping it {own:.0f} µs more, {own / step / 10:.2f} %; ratio "
            f"by the clock {statistics.median(ratios):.3f} (quartiles {ratios[quarter]:.3f} and "
            f"{ratios[-1 - quarter]:.3f}); {written(case):.0f} kB a step and rank",
            flush=True,
        )


if __name__ == "__main__":
    main()
