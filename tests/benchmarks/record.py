"""CPU time that `--use record` adds to a step: python tests/benchmarks/record.py

First the extension's own work: it wraps a strategy that does nothing but a backward through one product, so that a
step is what recording it takes, less that. That again for a device that works by itself, with one of ten steps
sampled; what the device's events take isn't in it, as others stand for them that take no time. Then the same steps of
Trainer on the same data with and without it, round by round in one process: of a tiny model (Linear 32→2), of that on
two ranks under ddp, which also compare times, and of a small model. Times are those of the loop's thread.
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
import torch.distributed as dist
from stratagem_report.recording import device
from stratagem_report.recording.recorder import Recorder
from stratagem_report.recording.stragglers import StragglerWatch
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
            self.began = time.thread_time()
        elif self.calls == self.steps:
            self.ended = time.thread_time()
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
    x = torch.randn(min(samples, 4096), width, generator=generator).repeat(
        samples // min(samples, 4096) + 1, 1
    )
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
    """What a strategy answers with, that does next to nothing."""

    def __init__(self) -> None:
        self.end_forward: Any = lambda *args: None
        self.weight = torch.ones(3, requires_grad=True)

    def dataloader(self, loader: Any) -> Any:
        return loader

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> None:
        loss = (self.weight * 2).sum()
        self.end_forward(None, None, loss)
        loss.backward()

    def step(self, index: int, closure: Any = None) -> bool:
        return True


class OneOfMany:
    """Collectives of a process group, of this process alone, that stands for many: they exchange as much."""

    rank, world_size, device = 0, 1, torch.device("cpu")

    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.process_group = dist.group.WORLD


class FakeDeviceEvents:
    """Stand for those of a device that has always done all, and take no time."""

    def make(self) -> FakeDeviceEvents:
        return self

    def record(self, event: Any) -> None:
        pass

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        return 1.0


def own_work(recorded: bool, many: bool, on_device: bool = False, steps: int = 10_000) -> float:
    """Microseconds of CPU per step of a loop over `Nothing`, written ten times, as in ten seconds."""
    prepared: Any = Nothing()
    times = device.DeviceTimes(FakeDeviceEvents()) if on_device else None
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(2 if many else 1, time.perf_counter_ns(), dict, times)
        if recorded:
            recorder.open(folder, 0, 0, {})
            wrapped = RecordedPrepared(prepared, recorder)
            prepared.end_forward, prepared = wrapped.end_forward, wrapped
            if many:
                ranks: Any = OneOfMany()
                recorder.watch = StragglerWatch(ranks, recorder.note_slow)
        batch = (torch.zeros(32, 4), torch.zeros(32))
        began = time.thread_time()
        for idx, each in enumerate(prepared.dataloader([batch] * steps)):
            prepared.forward_backward("training_step", each, idx, divisor=1, sync=True)
            prepared.step(0)
            if idx % 1000 == 0:
                recorder.flush()
        recorder.begin_end(failed=False)
        recorder.close("done")
        return (time.thread_time() - began) / steps * 1e6


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        f"{ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}; µs of CPU a step, medians"
    )
    cases = {
        "tiny, Linear 32→2, batch 32": (32, 0, 32, 2000, 1),
        "tiny, on two ranks under ddp": (32, 0, 32, 1000, 2),
        "small, 4 × Linear 512→512, batch 128": (512, 4, 128, 120, 1),
    }
    for many in (False, True):
        added = [own_work(True, many) - own_work(False, many) for _ in range(ROUNDS)]
        print(
            f"its own work, {'one rank of several' if many else 'a single rank'}: {statistics.median(added):.1f} µs "
            f"a step ({min(added):.1f} to {max(added):.1f}), 0.5 % of {statistics.median(added) / 5:.1f} ms",
            flush=True,
        )
    share, device.COST_SHARE = device.COST_SHARE, float("inf")  # these steps take no time
    added = [own_work(True, True, on_device=True) - own_work(True, True) for _ in range(ROUNDS)]
    device.COST_SHARE = share
    print(
        f"on a device that works by itself, further {statistics.median(added):.1f} µs a step ({min(added):.1f} to "
        f"{max(added):.1f}) and what its events take",
        flush=True,
    )
    if dist.is_initialized():
        dist.destroy_process_group()
    chosen = os.environ.get("BENCH_CASES", "")
    for name, (width, depth, batch, steps, ranks) in cases.items():
        if chosen not in name:
            continue
        plain, recorded = [], []
        for index in range(ROUNDS + 1):
            order = [([], plain), (["record"], recorded)]
            for plugins, figures in order if index % 2 else order[::-1]:
                figures.append(fit(width, depth, batch, steps, ranks, plugins))
        more = statistics.median(b - a for a, b in zip(plain[1:], recorded[1:]))
        step = statistics.median(plain[1:])
        print(
            f"{name}: a step {step:.0f} µs, recording adds {more:.1f} µs, {100 * more / step:.2f} %; by the "
            f"fastest rounds {min(recorded) - min(plain):.1f} µs, {100 * (min(recorded) / min(plain) - 1):.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
