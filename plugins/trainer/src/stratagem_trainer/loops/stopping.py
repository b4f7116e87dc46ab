"""`Stop`: decides when a fit ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from stratagem_trainer.durations import max_time_s

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


class Stop:
    """Checks the limits of epochs, steps and time, and requests to stop. Time counts from its construction.

    Args:
        state: the fit's objects.
    """

    def __init__(self, state: StageState) -> None:
        self._state = state
        self._epochs, self._steps = state.settings.epochs, state.settings.steps
        limit = max_time_s(state.settings.max_time)
        self._deadline = None if limit is None else time.monotonic() + limit

    def is_fit_over(self) -> bool:
        """Whether no further epoch begins. Collective if there is a `max_time`."""
        epochs = self._epochs
        return (epochs is not None and self._state.progress.epoch >= epochs) or self.is_due()

    def is_due(self) -> bool:
        """Whether no further step is made. Collective if there is a `max_time`."""
        # This runs in each step: return early if there is no limit.
        if self._deadline is None and not self._state.should_stop:
            return self._steps is not None and self._is_last_step()
        return self.is_heard() or self._is_last_step()

    def is_heard(self) -> bool:
        """Whether a request or `max_time` ends the fit here. Collective if there is a `max_time`.

        The ranks' clocks may differ, so they agree on the time.
        """
        state = self._state
        if self._deadline is not None and not state.should_stop:
            collectives = state.runtime.collectives
            late = torch.tensor(
                [time.monotonic() >= self._deadline], dtype=torch.float32, device=collectives.device
            )
            state.should_stop = bool(collectives.all_reduce(late, "max").item())
        if not state.should_stop:
            return False
        settings, progress = state.settings, state.progress
        minimums = (settings.min_epochs, progress.epoch), (settings.min_steps, progress.step)
        return all(minimum is None or done >= minimum for minimum, done in minimums)

    def _is_last_step(self) -> bool:
        return self._steps is not None and self._state.progress.all_steps >= self._steps
