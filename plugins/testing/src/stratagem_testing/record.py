"""`TrainingRecord`: the result of a training on one rank; and `Recorder`, the callback that records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor

from stratagem import Checkpoint
from stratagem.sdk.loops import loss_of

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer

    from stratagem import Checkpointer


@dataclass(kw_only=True)
class TrainingRecord:
    """The result of a training on one rank. Tensors are on the CPU, under names of the module's state dict."""

    start: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and buffers before the first step, where they are needed."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and buffers at the end, whole, as in a checkpoint."""
    own: dict[str, Tensor] = field(default_factory=dict)
    """This rank's own parameters and buffers, where they are needed."""
    steps: int = 0
    """Optimizer steps."""


class Recorder(Callback):
    """Keeps losses, and at the end the whole weights. Derive from it to keep more.

    Args:
        path: prefix of the files that it writes.
    """

    order = 100

    def __init__(self, path: str) -> None:
        self.path = path
        self.losses: list[float | None] = []
        """Per micro-batch, the mean over its samples on this rank; None where the step returned none."""
        self.steps = 0
        self.weights: dict[str, Tensor] = {}

    def loss_in(self, outputs: Any) -> Tensor | None:
        """Return the loss in what a training step returned; None if there is none."""
        return loss_of(outputs)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = self.loss_in(outputs)
        self.losses.append(None if loss is None else float(loss.detach().double()))

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        self.steps = trainer.global_step
        self.weights = self.read_weights(trainer)

    def read_weights(self, trainer: Trainer) -> dict[str, Tensor]:
        """Return the module's parameters and buffers, whole, by name. Collective."""
        checkpointer = trainer.runtime.session.checkpointer
        return gather_whole(checkpointer, trainer.prepared.model_tensors(), f"{self.path}-weights", "model/")


def gather_whole(
    checkpointer: Checkpointer, tensors: Mapping[str, Any], path: str, prefix: str = ""
) -> dict[str, Tensor]:
    """Return tensors as one process would have them, on every rank. Collective.

    It writes and reads a checkpoint, in which sharded tensors are complete.

    Args:
        checkpointer: of the session.
        tensors: as `Prepared.model_tensors` returns them.
        path: of the checkpoint.
        prefix: of the names that are returned, without it.
    """
    checkpointer.save(path, Checkpoint(dict(tensors)))
    return read_whole(checkpointer, path, prefix)


def read_whole(checkpointer: Checkpointer, path: str, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names start with `prefix`, without it. Collective."""
    reader = checkpointer.open(path)
    whole = {
        name: torch.empty(info.shape, dtype=info.dtype)
        for name, info in reader.tensors.items()
        if name.startswith(prefix)
    }
    reader.read(whole)
    return {name.removeprefix(prefix): value for name, value in whole.items()}
