"""`Validations`: the validations within a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stratagem_trainer.loops.validation_times import ValidationTimes

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


class Validations:
    """Runs the validations that are due.

    Args:
        state: the stage's objects.
        validate: runs a validation; None if the fit has none.
        num_batches: number of batches in a training epoch; None if unknown.

    Raises:
        ConfigError: `val_check_interval` is longer than an epoch.
    """

    def __init__(
        self, state: StageState, validate: Callable[[], object] | None, num_batches: int | None
    ) -> None:
        self._state, self._validate = state, validate
        self._times: ValidationTimes | None = None
        self._is_first = True
        self.count_batches(num_batches)

    def count_batches(self, num_batches: int | None) -> None:
        """Set the number of batches of a training epoch from here on."""
        if self._validate is not None:
            self._times = ValidationTimes(self._state.settings, self._state.progress, num_batches)

    def is_due(self) -> bool:
        """Whether a validation is due between two steps."""
        return self._times is not None and self._times.is_due()

    def run_if_due(self) -> None:
        """Validate between two steps if that is due. Collective."""
        if self.is_due():
            self._run()

    def run_at_an_end(self, is_stop: bool) -> None:
        """Validate at the end of an epoch if that is due. Collective.

        Args:
            is_stop: whether the epoch ends by a stop. Then batches that weren't validated yet make it due.
        """
        times = self._times
        if times is not None and (times.is_due_at_a_stop() if is_stop else times.is_due_at_the_end()):
            self._run()

    def _run(self) -> None:
        assert self._validate is not None
        if self._is_first:
            # Compare the ranks' models before the first metrics are reported.
            self._state.guard.compare_last_steps("before the first validation")
            self._is_first = False
        self._validate()
