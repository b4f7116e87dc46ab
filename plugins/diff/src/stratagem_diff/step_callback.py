"""`StepCallback`: lets a record begin at a step of a Trainer's fit. Only a Trainer imports this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem_trainer.callbacks import Callback
from torch import nn


class StepCallback(Callback):
    """Calls a function before the first micro-batch of a step.

    Args:
        step: optimizer step, from 1.
        begin: gets the user's module.
    """

    def __init__(self, step: int, begin: Callable[[nn.Module], None]) -> None:
        self._step, self._begin = step, begin
        self._has_begun = False

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin, if the step is this one."""
        if not self._has_begun and trainer.progress.step + 1 == self._step:
            self._has_begun = True
            self._begin(module)
