"""CPU time per step of other trainers beside ours, over a plain loop: python tests/benchmarks/other_trainers.py

Measures those that are installed: pip install lightning accelerate transformers pytorch-ignite skorch. The same tiny
model and the same rounds as tests/benchmarks/overhead.py; nothing is logged, no bar is drawn, nothing is saved. The
accelerate line is a loop of one's own, as are those of Fabric and of our `Runtime`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from overhead import ROUNDS, STEPS, Tiny, loader, plain, quiet, runtime, trainer
from torch import nn
from torch.utils.data import DataLoader

Data = DataLoader[Any]


def fabric(data: Data) -> float:
    from lightning.fabric import Fabric

    fabric, module = Fabric(accelerator="cpu", devices=1), Tiny()
    wrapped, optimizer = fabric.setup(module, module.configure_optimizers())
    wrapped.mark_forward_method("training_step")
    for idx, batch in enumerate(fabric.setup_dataloaders(data)):
        fabric.backward(wrapped.training_step(batch, idx))
        optimizer.step()
        optimizer.zero_grad()
    return module.microseconds


def lightning(data: Data) -> float:
    import lightning as L

    class Same(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.tiny = Tiny()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.tiny.training_step(batch, batch_idx)

        def configure_optimizers(self) -> Any:
            return self.tiny.configure_optimizers()

    module = Same()
    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    L.Trainer(accelerator="cpu", devices=1, max_epochs=1, **off).fit(module, data)
    return module.tiny.microseconds


def accelerate(data: Data) -> float:
    from accelerate import Accelerator

    accelerator, module = Accelerator(cpu=True), Tiny()
    _, optimizer, prepared = accelerator.prepare(module, module.configure_optimizers(), data)
    for idx, batch in enumerate(prepared):
        accelerator.backward(module.training_step(batch, idx))
        optimizer.step()
        optimizer.zero_grad()
    return module.microseconds


class Returning(nn.Module):
    """The step as a forward that returns its loss, as trainers of dicts want it."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = Tiny()

    def forward(self, x: Any, y: Any) -> dict[str, Any]:
        return {"loss": self.tiny.training_step((x, y), 0)}


def hugging_face(data: Data) -> float:
    from transformers import Trainer, TrainingArguments

    module = Returning()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=data.batch_size or 1, use_cpu=True,
            report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True, max_grad_norm=0.0,
        )  # fmt: skip
        samples: Any = data.dataset
        rows = [{"x": x, "y": y} for x, y in samples]
        optimizer = module.tiny.configure_optimizers()
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        Trainer(module, arguments, train_dataset=rows, optimizers=(optimizer, constant)).train()
    return module.tiny.microseconds


def ignite(data: Data) -> float:
    from ignite.engine import Engine

    module = Tiny()
    optimizer = module.configure_optimizers()

    def step(engine: Any, batch: Any) -> float:
        loss = module.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return 0.0

    Engine(step).run(data, max_epochs=1)
    return module.microseconds


def skorch(data: Data) -> float:
    from skorch import NeuralNet

    class Counting(NeuralNet):
        calls = 0

        def train_step(self, batch: Any, **fit_params: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                self.began = time.process_time()
            elif self.calls == STEPS:
                self.ended = time.process_time()
            return super().train_step(batch, **fit_params)

    net = Counting(
        nn.Linear(32, 2), nn.CrossEntropyLoss, optimizer=torch.optim.SGD, lr=0.01, max_epochs=1, train_split=None,
        batch_size=data.batch_size, iterator_train__shuffle=True, callbacks=None, verbose=0,
    )  # fmt: skip
    net.fit(data.dataset, y=None)
    return float(net.ended - net.began) / (STEPS - 1) * 1e6


OURS: dict[str, Callable[[Data], float]] = {
    "Stratagem `Runtime`": runtime,
    "Stratagem `Trainer`": lambda data: trainer(data, enable_progress_bar=False, logger=False),
}
OTHERS: dict[str, tuple[str, Callable[[Data], float]]] = {
    "Lightning Fabric": ("lightning", fabric),
    "Lightning `Trainer`": ("lightning", lightning),
    "accelerate": ("accelerate", accelerate),
    "Hugging Face `Trainer`": ("transformers", hugging_face),
    "ignite": ("pytorch-ignite", ignite),
    "skorch": ("skorch", skorch),
}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    variants = dict(OURS)
    for name, (distribution, measure) in OTHERS.items():
        try:
            variants[f"{name} {version(distribution)}"] = measure
        except PackageNotFoundError:
            print(f"{name}: not installed: pip install {distribution}", file=sys.stderr)
    data, base = loader(), list[float]()
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    for round_index in range(ROUNDS + 1):
        reference = plain(data)
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            figures = {name: measure(data) for name, measure in variants.items()}
        if round_index > 0:  # the first warms up
            base.append(reference)
            for name, figure in figures.items():
                ratios[name].append(figure / reference)
    print(f"{STEPS} steps, {ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print("| | median | lowest to highest |\n| --- | --- | --- |")
    print(f"| plain PyTorch loop | {statistics.median(base):.0f} µs | |")
    for name, values in sorted(ratios.items(), key=lambda item: statistics.median(item[1])):
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")


if __name__ == "__main__":
    main()
