"""Whether training under each strategy and precision has the plain loop's numbers: python -m tests.gpu.equal

The plain loop runs on the same device, so that equal kernels give equal bits.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import stratagem
from tests.gpu.models import batches, compiler, decoder
from tests.gpu.setting import Setting, main

STEPS = 12
NAME = "gpt2-small"
STRATEGIES = (
    "single",
    "ddp",
    "ddp_sharded",
    "fsdp",
    "ddp_fully_sharded",
    "model_parallel",
    "diloco",
    "bagua",
    "dp",
)
ENGINES = ("deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "fairscale_sharded")
"""By other libraries, in a piece of work of their own: `python -m tests.gpu.engines`."""
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
COMPILED = ("single", "ddp", "fsdp")
TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "64-true": torch.float64}


class Module(stratagem.Module):
    """Keeps its losses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0])
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def plain(setting: Setting, precision: str, compiled: bool) -> list[float]:
    """Train by nothing but torch, clipped; return the losses."""
    model = decoder(NAME, torch.device("cpu")).to(setting.device, TRUE.get(precision, torch.float32))
    if compiled:
        model.compile(backend=compiler(setting.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(setting.accelerator, enabled=precision == "16-mixed")
    losses = []
    for (tokens,) in batches(NAME, STEPS, pinned=False):
        mixed = contextlib.nullcontext()
        if precision in MIXED:
            mixed = torch.autocast(setting.accelerator, MIXED[precision])
        with mixed:
            loss = model(tokens.to(setting.device))
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses


def trained(setting: Setting, strategy: str, precision: str, compiled: bool) -> list[float]:
    """Train by Trainer in the same way; return the losses."""
    module = Module(decoder(NAME, torch.device("cpu")))
    if compiled:
        module.model.compile(backend=compiler(setting.device))
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy=strategy,
            accelerator=setting.accelerator,
            devices=1,
            precision=precision,
            max_epochs=1,
            gradient_clip_val=1.0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
        ).fit(module, batches(NAME, STEPS, pinned=False))
    return [loss.item() for loss in module.losses]


def measure(setting: Setting) -> dict[str, Any]:
    """Compare losses of each strategy, precision and compiled model with the plain loop's."""
    return compare(setting, STRATEGIES, COMPILED)


def compare(setting: Setting, strategies: Sequence[str], compiled_too: Sequence[str] = ()) -> dict[str, Any]:
    """Compare losses of some strategies in each precision, of some also with a compiled model."""
    found: dict[str, str] = {}
    for precision in (*TRUE, *MIXED):
        for compiled in (False, True) if precision in ("32-true", "bf16-mixed") else (False,):
            losses = plain(setting, precision, compiled)
            for strategy in compiled_too if compiled else strategies:
                name = f"{strategy}, {precision}{', compiled' if compiled else ''}"
                found[name] = _compared(setting, strategy, precision, compiled, losses)
    return {"steps": STEPS, "cells": found}


def _compared(setting: Setting, strategy: str, precision: str, compiled: bool, losses: list[float]) -> str:
    try:
        ours = trained(setting, strategy, precision, compiled)
    except stratagem.StratagemError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:500]
    if ours == losses:
        return "equal to the bit"
    largest = max(abs(a - b) / abs(b) for a, b in zip(ours, losses))
    return f"differs by {largest:.0e}" if len(ours) == len(losses) else "has other steps"


if __name__ == "__main__":
    main(measure)
