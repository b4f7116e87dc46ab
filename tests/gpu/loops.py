"""One training step under each trainer, distinguished by nothing but who runs the loop.

Each loop trains a `Step` on the batches of a loader and returns nothing: the step itself notes the time and memory of
its calls, so that no trainer's start and end count.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import stratagem
from tests.gpu.models import compiler, decoder

Data = DataLoader[Any]
WARM_UP = 5
"""Steps that don't count."""


class Step(stratagem.Module):
    """A language model, and when its steps began and ended.

    Args:
        name: of the model's size.
        device: on which it is made.
        steps: that it will be called for.
        compiled: compile each block.
    """

    def __init__(self, name: str, device: torch.device, steps: int, compiled: bool = False) -> None:
        super().__init__()
        self.model = decoder(name, device)
        self.on, self.steps, self.calls = device, steps, 0
        self.began_s = self.ended_s = 0.0
        self.peak_bytes = self.reserved_bytes = 0
        if compiled:
            for block in self.model.blocks:
                block.compile(backend=compiler(device))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM_UP:
            self.began_s = self.now()
        elif self.calls == self.steps:
            self.ended_s = self.now()
            if self.on.type != "cpu":
                self.peak_bytes = torch.accelerator.max_memory_allocated(self.on)
                self.reserved_bytes = torch.accelerator.memory_reserved(self.on)
        loss: Tensor = self.model(batch[0])
        return loss

    def now(self) -> float:
        """Return the time when the device has done all."""
        if self.on.type != "cpu":
            torch.accelerator.synchronize(self.on)
        return time.perf_counter()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=self.on.type == "cuda")

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return (self.ended_s - self.began_s) / (self.steps - WARM_UP)


def plain(step: Step, data: Data) -> None:
    """Train by nothing but torch."""
    optimizer = step.configure_optimizers()
    for idx, (tokens,) in enumerate(data):
        batch = (tokens.to(step.on, non_blocking=True),)
        with torch.autocast(step.on.type, torch.bfloat16):
            loss = step.training_step(batch, idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def runtime(step: Step, data: Data, device: torch.device | None = None) -> None:
    """Train by an own loop with `Runtime`, on the step's device or another one."""

    def loop(runtime: stratagem.Runtime) -> None:
        module, optimizer = runtime.setup(
            step, step.configure_optimizers(), forward_methods=["training_step"]
        )
        for idx, batch in enumerate(runtime.dataloader(data)):
            loss = module.training_step(batch, idx)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    stratagem.Runtime("single", (device or step.on).type, 1, precision="bf16-mixed").launch(loop, quiet=True)


def trainer(step: Step, data: Data, plugins: Sequence[str] = (), precision: str = "bf16-mixed") -> None:
    """Train by `Trainer`, with extensions."""
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy="single",
            accelerator=step.on.type,
            devices=1,
            precision=precision,
            max_epochs=1,
            plugins=list(plugins),
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
        ).fit(step, data)


def lightning(step: Step, data: Data) -> None:
    """Train by Lightning's trainer."""
    import lightning as L

    class Same(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.step = step

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return step.training_step(batch, batch_idx)

        def configure_optimizers(self) -> Any:
            return step.configure_optimizers()

    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    accelerator = {"cuda": "gpu"}.get(step.on.type, step.on.type)
    how: dict[str, Any] = {"precision": "bf16-mixed", "max_epochs": 1, **off}
    L.Trainer(accelerator=accelerator, devices=1, **how).fit(Same(), data)


def accelerate(step: Step, data: Data) -> None:
    """Train by a loop with accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=step.on.type == "cpu")
    _, optimizer, prepared = accelerator.prepare(step, step.configure_optimizers(), data)
    for idx, batch in enumerate(prepared):
        with accelerator.autocast():
            loss = step.training_step(batch, idx)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


Loop = Callable[[Step, Data], None]
LOOPS: dict[str, Loop] = {
    "plain loop": plain,
    "Runtime": runtime,
    "Trainer": trainer,
}
OTHERS: dict[str, Loop] = {"lightning": lightning, "accelerate": accelerate}


def available() -> dict[str, Loop]:
    """Return the loops that can be run here, by the name and the version of what runs them."""
    found = dict(LOOPS)
    for name, loop in OTHERS.items():
        with contextlib.suppress(PackageNotFoundError):
            found[f"{name} {version(name)}"] = loop
    return found


@contextlib.contextmanager
def silent() -> Any:
    """Nothing of what trainers print and warn of is shown."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
        logging.disable(logging.NOTSET)
