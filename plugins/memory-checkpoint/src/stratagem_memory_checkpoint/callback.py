"""`MemoryCheckpoint`: when checkpoints are kept in memory."""

from __future__ import annotations

from typing import Any

from stratagem_trainer.callbacks import Callback

from stratagem.errors import ConfigError
from stratagem_memory_checkpoint.checkpointer import SCHEME


class MemoryCheckpoint(Callback):
    """Keep a checkpoint in memory every n optimizer steps; see `PeerMemory`, which the run has to use.

    Workers that `max_restarts` starts again resume from the newest one, be it in memory or on disk: with this one, at
    most so many steps are trained again.

    Args:
        every_n_train_steps: after each n-th optimizer step.

    Raises:
        ConfigError: no number of at least 1.
    """

    order = 100
    """After the callbacks whose states go into the checkpoint."""
    is_left_out_of_fast_dev_run = True

    def __init__(self, every_n_train_steps: int = 10) -> None:
        if not isinstance(every_n_train_steps, int) or every_n_train_steps < 1:
            raise ConfigError(
                f"MemoryCheckpoint got every_n_train_steps={every_n_train_steps!r}; give a number of at least 1"
            )
        self.every_n_train_steps = every_n_train_steps
        self._saved = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._saved = trainer.global_step

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        # Called once per micro-batch; and what was resumed from is saved already.
        if step % self.every_n_train_steps == 0 and step > self._saved:
            self._saved = step
            trainer.save_checkpoint(f"{SCHEME}step={step}")
