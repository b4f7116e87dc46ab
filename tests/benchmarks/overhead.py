"""CPU time per step of Trainer and Runtime over a plain loop: python tests/benchmarks/overhead.py

A tiny model (Linear 32→2) on one thread, so that almost all time is overhead. All variants take the
same steps on the same data, round by round in one process; each figure is a ratio within a round.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from stratagem_trainer.callbacks.progress import ProgressBar
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "5000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
BATCH = 32


class Tiny(stratagem.Module):
    """Notes the CPU time of its first and its last step."""

    def __init__(self, logs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(32, 2)
        self.logs = logs
        self.calls = 0
        self.began = self.ended = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            self.began = time.process_time()
        elif self.calls == STEPS:
            self.ended = time.process_time()
        x, y = batch
        loss = F.cross_entropy(self.layer(x), y)
        if self.logs:
            self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    @property
    def microseconds(self) -> float:
        return (self.ended - self.began) / (STEPS - 1) * 1e6


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, 32, generator=generator)
    y = torch.randint(0, 2, (STEPS * BATCH,), generator=generator)
    return DataLoader(TensorDataset(x, y), BATCH, shuffle=True)


class Batches(Dataset[Any]):
    """The same data, cut into batches beforehand: reading one costs next to nothing."""

    def __init__(self) -> None:
        samples: Any = loader().dataset
        self.batches = list(zip(*(tensor.split(BATCH) for tensor in samples.tensors)))

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def plain(data: DataLoader[Any]) -> float:
    module = Tiny()
    optimizer = module.configure_optimizers()
    for idx, batch in enumerate(data):
        loss = module.training_step(batch, idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return module.microseconds


def runtime(data: DataLoader[Any]) -> float:
    def loop(runtime: stratagem.Runtime) -> float:
        module = Tiny()
        wrapped, optimizer = runtime.setup(module, module.configure_optimizers())
        for idx, batch in enumerate(runtime.dataloader(data)):
            loss = wrapped.training_step(batch, idx)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return module.microseconds

    return float(stratagem.Runtime(strategy="single", accelerator="cpu").launch(loop, quiet=True))


def trainer(data: DataLoader[Any], **how: Any) -> float:
    module = Tiny(logs="log_every_n_steps" in how)
    with tempfile.TemporaryDirectory() as folder, quiet():
        stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            max_epochs=1,
            enable_checkpointing=False,
            run_dir=folder,
            **how,
        ).fit(module, data)
    return module.microseconds


@contextlib.contextmanager
def quiet() -> Any:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def logging_trainer(data: DataLoader[Any]) -> float:
    # A terminal without a reader: the bar is drawn as on a real one.
    with open(os.devnull, "w") as nowhere:
        bar = ProgressBar(console=Console(file=nowhere, force_terminal=True, width=120))
        return trainer(data, log_every_n_steps=1, callbacks=[bar])


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    variants = {
        "Runtime": runtime,
        "Trainer, nothing logged": lambda data: trainer(data, enable_progress_bar=False, logger=False),
        "Trainer, one value logged every step to CSV, progress bar on": logging_trainer,
    }
    print(f"{STEPS} steps, {ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}")
    compare("a DataLoader of samples", loader(), variants)
    compare("batches made beforehand", DataLoader(Batches(), batch_size=None), variants)


def compare(
    what: str, data: DataLoader[Any], variants: Mapping[str, Callable[[DataLoader[Any]], float]]
) -> None:
    """Print each variant's time over the plain loop's, round by round."""
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    base: list[float] = []
    for round_index in range(ROUNDS + 1):
        reference = plain(data)
        figures = {name: run(data) for name, run in variants.items()}
        if round_index == 0:
            continue  # warm-up
        base.append(reference)
        for name, figure in figures.items():
            ratios[name].append(figure / reference)
    print(f"{what}: plain loop {statistics.median(base):.0f} µs of CPU per step")
    for name, values in ratios.items():
        print(f"  {name}: {statistics.median(values):.3f}x ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
