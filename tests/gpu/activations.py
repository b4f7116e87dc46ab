"""Memory and time of a step with fewer activations kept: python -m tests.gpu.activations --accelerator cuda

The extension's modes beside training without it, and beside torch's own checkpointing of each block in a plain loop.
"""

from __future__ import annotations

import gc
import statistics
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.gpu.loops import Step, plain, silent, trainer
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

STEPS, TURNS = 16, 2
EXTENSIONS = ("activations_selective", "activations_full", "activations_offload")


class KeptLosses(Step):
    """Keeps its losses, so that the ways can be compared."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach().clone())
        return loss


def measure(setting: Setting) -> dict[str, Any]:
    """Train each size in each way, in turns; return peak memory and seconds per step."""
    return {name: measure_size(name, setting) for name in setting.sizes}


def measure_size(name: str, setting: Setting) -> dict[str, Any]:
    """Return for each way what it took, and how far its losses are from the plain loop's.

    The plain loop runs twice: on a GPU, the gradient of an embedding adds up in any order, so that even the same
    program has other losses the next time.
    """
    ways = ("plain loop", "plain loop again", "Trainer", "torch.utils.checkpoint", *EXTENSIONS)
    data = batches(name, STEPS, pinned=setting.has_memory)
    took: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, dict[str, Any]] = {}
    losses: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for way in ways:
            gc.collect()
            step = KeptLosses(name, setting.device, STEPS)
            if setting.has_memory:
                torch.accelerator.empty_cache()
                torch.accelerator.reset_peak_memory_stats()
            with silent():
                _train(way, step, data)
            took[way].append(step.step_s)
            losses[way] = [loss.item() for loss in step.losses]
            found[way] = {"peak_bytes": step.peak_bytes}
            del step
    for way in ways:
        found[way]["step_s"] = statistics.median(took[way])
        found[way]["difference"] = max(
            abs(mine - base) / abs(base) for mine, base in zip(losses[way], losses["plain loop"], strict=True)
        )
    return found


def _train(way: str, step: KeptLosses, data: Any) -> None:
    if way == "torch.utils.checkpoint":
        for block in step.model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if way in ("plain loop", "plain loop again", "torch.utils.checkpoint"):
        plain(step, data)
    else:
        trainer(step, data, [way] if way in EXTENSIONS else [])


if __name__ == "__main__":
    main(measure)
