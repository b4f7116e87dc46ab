"""Where the host waits for the device within a step: python -m tests.gpu.waits --accelerator cuda

CUDA's own debug mode notes each wait that torch asks for: .item(), a copy into memory that isn't pinned, nonzero. On
sim, the device itself does.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import stratagem
from tests.gpu.loops import Step
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

FIRST, LAST = 12, 60
"""Calls of the step between which waits count: settled, and without the epoch's end."""


class WatchedStep(Step):
    """Notes waits between two of its calls; logs its loss if asked to."""

    def __init__(self, *args: Any, logs: bool = False) -> None:
        super().__init__(*args)
        self.logs = logs
        self.caught: Any = None
        self.waits: Counter[str] = Counter()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.calls += 1
        if self.calls == FIRST:
            self.begin()
        elif self.calls == LAST:
            self.end()
        loss: torch.Tensor = self.model(batch[0])
        if self.logs:
            self.log("loss", loss, prog_bar=True)
        return loss

    def begin(self) -> None:
        self.caught = warnings.catch_warnings(record=True)
        self.seen = self.caught.__enter__()
        warnings.simplefilter("always")
        if self.on.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        elif self.on.type == "sim":
            from stratagem_sim import count_synchronizations

            self.counted = count_synchronizations()
            self.on_sim = self.counted.__enter__()

    def end(self) -> None:
        if self.on.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        elif self.on.type == "sim":
            self.counted.__exit__(None, None, None)
            for place in self.on_sim.places:
                where, _, _ = place.partition(": ")[2].partition(" ")
                self.waits["/".join(Path(where).parts[-3:])] += 1
        self.caught.__exit__(None, None, None)
        for each in self.seen:
            if "called a synchronizing" in str(each.message):
                path = Path(each.filename)
                # Where it is installed says nothing: as stratagem_trainer/loops/loss_watch.py.
                where = "/".join(path.parts[-3:])
                self.waits[f"{where}:{each.lineno}"] += 1
        self.seen = []


def measure(setting: Setting) -> dict[str, Any]:
    """Count waits of Runtime and Trainer, with what a step may have on."""
    cases: dict[str, dict[str, Any]] = {
        "Trainer": {},
        "Trainer, clipping": {"gradient_clip_val": 1.0},
        "Trainer, two batches per step": {"accumulate_grad_batches": 2},
        "Trainer, 16-mixed": {"precision": "16-mixed"},
        "Trainer, a value logged every 10 steps, bar": {"logger": "csv", "log_every_n_steps": 10},
        "Trainer, report": {"plugins": ["record"]},
    }
    found = {name: of_trainer(setting, dict(how)) for name, how in cases.items()}
    found["Runtime"] = of_runtime(setting, None)
    found["Runtime, clipping"] = of_runtime(setting, 1.0)
    for strategy in ("ddp", "fsdp", "ddp_fully_sharded", "model_parallel"):
        found[f"Trainer, {strategy}"] = of_trainer(setting, {"strategy": strategy})
    return {"steps": LAST - FIRST, "waits": found}


def _step(setting: Setting, logs: bool = False) -> WatchedStep:
    return WatchedStep("gpt2-small", setting.device, 0, logs=logs)


def of_trainer(setting: Setting, how: dict[str, Any]) -> dict[str, int]:
    step = _step(setting, logs="logger" in how)
    settings = {
        "strategy": "single", "precision": "bf16-mixed", "enable_checkpointing": False,
        "enable_progress_bar": "logger" in how, "logger": False,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            accelerator=setting.accelerator, devices=1, max_epochs=1, run_dir=folder, **{**settings, **how}
        ).fit(step, batches("gpt2-small", LAST + 10, pinned=setting.has_memory))
    return dict(step.waits)


def of_runtime(setting: Setting, max_norm: float | None) -> dict[str, int]:
    step = _step(setting)

    def loop(runtime: stratagem.Runtime) -> None:
        module, optimizer = runtime.setup(
            step, step.configure_optimizers(), forward_methods=["training_step"]
        )
        loader = batches("gpt2-small", LAST + 10, pinned=setting.has_memory)
        for idx, batch in enumerate(runtime.dataloader(loader)):
            runtime.backward(module.training_step(batch, idx))
            if max_norm is not None:
                runtime.clip(optimizer, max_norm=max_norm)
            optimizer.step()
            optimizer.zero_grad()

    stratagem.Runtime("single", setting.accelerator, 1, precision="bf16-mixed").launch(loop, quiet=True)
    return dict(step.waits)


if __name__ == "__main__":
    main(measure)
