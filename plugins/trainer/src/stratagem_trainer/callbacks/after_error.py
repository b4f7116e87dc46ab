"""Checkpoints of fits that an error ends: `save_after_error`, and `OnExceptionCheckpoint`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError
from stratagem.sdk.selection import path_text
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.last_link import folder_of

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

WAIT_S = 5.0
"""Seconds that a rank waits after an error for the other ranks, before it gives up on a checkpoint."""


def save_after_error(trainer: TrainerView, path: str, weights_only: bool = False) -> bool:
    """Write a checkpoint of the last completed step, if all ranks fail at the same step. Return whether it was
    written.

    If only some ranks fail, the others can't take part in writing it. Rank 0 then prints why there is none, without
    waiting longer.
    """
    reason = _why_apart(trainer)
    if reason is None:
        try:
            if weights_only:
                trainer.save_checkpoint(path, weights_only=True)
            else:
                trainer.save_checkpoint(path)
            trainer.runtime.session.checkpointer.wait()
        except Exception as error:  # don't hide the run's own error
            reason = f"{type(error).__name__}: {error}"
    if reason is not None and trainer.is_main:
        print(f"No checkpoint {path} after the error: {reason}", file=sys.stderr, flush=True)
    return reason is None


def _why_apart(trainer: TrainerView) -> str | None:
    if trainer.world_size == 1:
        return None
    if not trainer.collectives.all_arrive("a checkpoint after an error", WAIT_S):
        return "not every rank had an error"
    place = (trainer.progress.epoch, trainer.progress.batch, trainer.progress.step)
    if len(set(trainer.collectives.gather_objects(place))) > 1:
        return "ranks had errors at different steps"
    return None


class OnExceptionCheckpoint(Callback):
    """Write a checkpoint from which a fit can resume, if an error or an interrupt ends it.

    On several ranks, it is written only if all ranks fail at the same step. Otherwise a line says why not.

    Args:
        dirpath: folder; a relative one is within the run's folder.
        filename: name of the checkpoint in it.

    Raises:
        ConfigError: the file name is empty, or has a folder.
    """

    is_left_out_of_fast_dev_run = True

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
            raise ConfigError(
                f"OnExceptionCheckpoint got filename={filename!r}; pass a file name without a folder"
            )
        self.dirpath, self.filename = path_text("dirpath", dirpath), filename
        self._fitting = False

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._fitting = stage == "fit"

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        if self._fitting:
            save_after_error(trainer, f"{folder_of(self.dirpath, trainer.run_dir, '')}/{self.filename}")
