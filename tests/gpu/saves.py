"""How long a save keeps training waiting, and whether it is right: python -m tests.gpu.saves --accelerator cuda

Saves go into memory (/dev/shm, where there is room), so that a slow disk doesn't end the measurement: in the
background, training waits for the copy alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import stratagem
from tests.gpu.loops import Step, silent
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

AT = (4, 12)
"""Steps after which it is saved: the first allocates the buffer, and doesn't count."""


class Saves(stratagem.Callback):
    """Saves after some steps, and notes how long each save kept the loop."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.blocked_s: list[float] = []
        self.weights: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step not in AT:
            return
        before = module.now()
        trainer.save_checkpoint(f"{self.folder}/saved")
        self.blocked_s.append(time.perf_counter() - before)
        if trainer.global_step == AT[-1]:
            self.weights = {
                key: value.detach().to("cpu", copy=True) for key, value in module.state_dict().items()
            }


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Save while training, in the background and not; read the last save, and compare it to the bit.

    Yields what is found so far after each way, the ways that matter most first.
    """
    found: dict[str, Any] = {}
    for name in setting.sizes:
        parameters = sum(p.numel() for p in Step(name, torch.device("meta"), 0).parameters())
        room = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 40 * parameters
        folder = "/dev/shm" if room else None
        each = found[name] = {"bytes": 12 * parameters, "folder": folder or "a disk"}
        for way, result in (
            ("background", partial(saved, setting, name, folder, background=True)),
            ("torch.save", partial(by_torch, setting, name, folder)),
            ("waiting", partial(saved, setting, name, folder, background=False)),
        ):
            each[way] = result()
            yield found


def saved(setting: Setting, name: str, folder: str | None, background: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        saves = Saves(own)
        step = Step(name, setting.device, AT[-1] + 1)
        with silent():
            stratagem.Trainer(
                strategy="single",
                accelerator=setting.accelerator,
                devices=1,
                precision="bf16-mixed",
                max_epochs=1,
                callbacks=[saves],
                checkpoint_options={"async": background},
                enable_checkpointing=False,
                enable_progress_bar=False,
                logger=False,
                run_dir=f"{own}/run",
            ).fit(step, batches(name, AT[-1] + 1, pinned=setting.has_memory))
            again = Step.load_from_checkpoint(f"{own}/saved", name=name, device=torch.device("cpu"), steps=0)
        same = all(torch.equal(value, saves.weights[key]) for key, value in again.state_dict().items())
        return {"blocked_s": saves.blocked_s, "read_back_equal": same}


def by_torch(setting: Setting, name: str, folder: str | None) -> dict[str, Any]:
    """Save the same by `torch.save`."""
    step = Step(name, setting.device, 0)
    optimizer = step.configure_optimizers()
    for parameter in step.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    blocked = []
    with tempfile.TemporaryDirectory(dir=folder) as own:
        for _ in AT:
            before = step.now()
            path = f"{own}/saved.pt"
            torch.save({"model": step.state_dict(), "optimizer": optimizer.state_dict()}, path)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            blocked.append(time.perf_counter() - before)
    return {"blocked_s": blocked}


if __name__ == "__main__":
    main(measure)
