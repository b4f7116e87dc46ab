"""`fast_dev_run`: run a few batches to check that everything works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.settings import TrainerSettings


def fast(settings: TrainerSettings, batches: bool | int) -> TrainerSettings:
    """Return settings for one epoch with this many batches in each loop.

    Raises:
        ConfigError: `batches` isn't a positive number.
    """
    number = 1 if batches is True else batches
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"fast_dev_run={batches!r} must be True, False or a number of batches")
    return replace(
        settings,
        max_epochs=1,
        max_steps=None,
        min_epochs=None,
        min_steps=None,
        max_time=None,
        num_sanity_val_steps=0,
        val_check_interval=None,
        check_val_every_n_epoch=1,
        log_every_n_steps=1,
        overfit_batches=0,
        limit_train_batches=number,
        limit_val_batches=number,
        limit_test_batches=number,
        limit_predict_batches=number,
    )


def without_files(callbacks: Sequence[Callback]) -> list[Callback]:
    """Leave out callbacks that write checkpoints, or that end a fit by its metrics."""
    return [callback for callback in callbacks if not callback.is_left_out_of_fast_dev_run]
