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
    """Parameters and buffers before the first step; empty if they aren't needed."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Full parameters and buffers at the end, as in a checkpoint."""
    own: dict[str, Tensor] = field(default_factory=dict)
    """This rank's own parameters and buffers; empty if they aren't needed."""
    steps: int = 0
    """Number of optimizer steps."""


class Recorder(Callback):
    """Records losses, and at the end the full weights. Derive from it to record more.

    Args:
        path: prefix of the files that it writes.
    """

    order = 100

    def __init__(self, path: str) -> None:
        self.path = path
        self.losses: list[float | None] = []
        """Loss of each micro-batch: the mean over its samples on this rank; None if the step returned none."""
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
        """Return the module's full parameters and buffers by name. Collective."""
        checkpointer = trainer.runtime.session.checkpointer
        return gather_whole(checkpointer, trainer.prepared.model_tensors(), f"{self.path}-weights", "model/")


def gather_whole(
    checkpointer: Checkpointer, tensors: Mapping[str, Any], path: str, prefix: str = ""
) -> dict[str, Tensor]:
    """Return tensors in full, as in one process, on every rank. Collective.

    It writes and reads a checkpoint, in which sharded tensors are complete.

    Args:
        checkpointer: the session's checkpointer.
        tensors: what `Prepared.model_tensors` returned.
        path: path of the checkpoint.
        prefix: prefix of the names to return; it is removed from them.
    """
    checkpointer.save(path, Checkpoint(dict(tensors)))
    return read_whole(checkpointer, path, prefix)


def read_whole(checkpointer: Checkpointer, path: str, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names start with `prefix`, with the prefix removed. Collective."""
    reader = checkpointer.open(path)
    whole = {
        name: torch.empty(info.shape, dtype=info.dtype)
        for name, info in reader.tensors.items()
        if name.startswith(prefix)
    }
    reader.read(whole)
    return {name.removeprefix(prefix): value for name, value in whole.items()}
