"""When a fit validates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem_trainer.settings import validation_interval

if TYPE_CHECKING:
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.progress import Progress


class ValidationTimes:
    """Decides when a fit validates: after a number of batches, or at the end of epochs.

    Args:
        settings: the trainer's settings.
        progress: the run's progress.
        num_batches: number of batches in a training epoch; None if unknown.

    Raises:
        ConfigError: the interval is longer than an epoch.
    """

    def __init__(self, settings: TrainerSettings, progress: Progress, num_batches: int | None) -> None:
        self._every, self._progress = settings.check_val_every_n_epoch, progress
        self._interval = validation_interval(num_batches, settings)

    def is_due(self) -> bool:
        """Whether `val_check_interval` batches have passed since the last validation of this epoch."""
        if not self._interval or not self._is_epoch():
            return False
        before = self._progress.batches_before if self._every is None else 0
        return (before + self._progress.batch) // self._interval > (
            before + self._progress.validated
        ) // self._interval

    def is_due_at_the_end(self) -> bool:
        """Whether a validation is due at the end of this epoch and hasn't run yet."""
        return not self._interval and self._is_epoch() and self._progress.validated != self._progress.batch

    def is_due_at_a_stop(self) -> bool:
        """Whether a validation is due if the epoch stops early here, and hasn't run yet."""
        return self._is_epoch() and self._progress.validated != self._progress.batch

    def _is_epoch(self) -> bool:
        return self._every is None or (self._progress.epoch + 1) % self._every == 0
