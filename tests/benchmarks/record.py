"""CPU time that `--use record` adds to a step: python tests/benchmarks/record.py

First the extension's own work: it wraps a strategy that does nothing, so that a step is what recording it takes, less
the loop. Then the same steps of Trainer on the same data with and without it, round by round in one process: of a tiny
model (Linear 32→2), of that on two ranks under ddp, which also compare their times, and of a small model.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
from stratagem_report.recording.recorder import Recorder
from stratagem_report.recording.wrapped import RecordedPrepared
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
WARM_UP = 20


class Net(stratagem.Module):
    """Notes the time of its first and its last step that count."""

    def __init__(self, width: int, depth: int, steps: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.net = nn.Sequential(*hidden, nn.Linear(width, 2))
        self.steps, self.calls = steps, 0
        self.began = self.ended = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM_UP:
            self.began = time.process_time()
        elif self.calls == self.steps:
            self.ended = time.process_time()
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_epoch_end(self) -> None:
        self.log("cpu_us", (self.ended - self.began) / (self.steps - WARM_UP) * 1e6)


def fit(width: int, depth: int, batch: int, steps: int, ranks: int, plugins: list[str]) -> float:
    """Microseconds of CPU per step, on rank 0."""
    samples = steps * batch * ranks
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(min(samples, 4096), width, generator=generator).repeat(samples // min(samples, 4096) + 1, 1)
    data = DataLoader(TensorDataset(x[:samples], torch.zeros(samples, dtype=torch.long)), batch)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        trainer = stratagem.Trainer(
            strategy="ddp" if ranks > 1 else "single",
            accelerator="cpu",
            devices=ranks,
            max_epochs=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
            plugins=plugins,
        )
        with contextlib.redirect_stderr(nowhere):
            trainer.fit(Net(width, depth, steps), data)
    return float(trainer.callback_metrics["cpu_us"])


class Nothing:
    """What a strategy answers with, that does nothing."""

    def __init__(self) -> None:
        self.end_forward: Any = lambda *args: None

    def dataloader(self, loader: Any) -> Any:
        return loader

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> None:
        self.end_forward(None, None, None)

    def step(self, index: int, closure: Any = None) -> bool:
        return True


def own_work(recorded: bool, steps: int = 20_000) -> float:
    """Microseconds of CPU per step of a loop over `Nothing`, written to a file twenty times as a long run does."""
    prepared: Any = Nothing()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(1, time.perf_counter_ns(), dict)
        if recorded:
            recorder.open(folder, 0, 0, {})
            wrapped = RecordedPrepared(prepared, recorder)
            prepared.end_forward, prepared = wrapped.end_forward, wrapped
        batch = (torch.zeros(32, 4), torch.zeros(32))
        began = time.process_time()
        for idx, each in enumerate(prepared.dataloader([batch] * steps)):
            prepared.forward_backward("training_step", each, idx, divisor=1, sync=True)
            prepared.step(0)
            if idx % 1000 == 0:
                recorder.flush()
        recorder.close(False)
        return (time.process_time() - began) / steps * 1e6


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}; µs of CPU a step, medians of rounds")
    cases = {
        "tiny, Linear 32→2, batch 32": (32, 0, 32, 2000, 1),
        "tiny, on two ranks under ddp": (32, 0, 32, 1000, 2),
        "small, 4 × Linear 512→512, batch 128": (512, 4, 128, 120, 1),
    }
    alone = [own_work(recorded=True) - own_work(recorded=False) for _ in range(ROUNDS)]
    print(
        f"its own work: {statistics.median(alone):.1f} µs a step ({min(alone):.1f} to {max(alone):.1f}), 0.5 % of a step "
        f"of {statistics.median(alone) / 5:.1f} ms",
        flush=True,
    )
    chosen = os.environ.get("BENCH_CASES", "")
    for name, (width, depth, batch, steps, ranks) in cases.items():
        if chosen not in name:
            continue
        plain, recorded = [], []
        for index in range(ROUNDS + 1):
            order = [([], plain), (["record"], recorded)]
            for plugins, figures in order if index % 2 else order[::-1]:
                figures.append(fit(width, depth, batch, steps, ranks, plugins))
        added = statistics.median(b - a for a, b in zip(plain[1:], recorded[1:]))
        step = statistics.median(plain[1:])
        print(
            f"{name}: a step {step:.0f} µs, recording adds {added:.1f} µs, {100 * added / step:.2f} %; by the "
            f"fastest rounds {min(recorded) - min(plain):.1f} µs, {100 * (min(recorded) / min(plain) - 1):.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
