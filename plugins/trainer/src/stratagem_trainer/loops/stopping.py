"""What ends a fit before its limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from stratagem_trainer.durations import max_time_s

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


class Stop:
    """Somebody's wish to stop, and the end of `max_time`, which begins when this is made.

    Args:
        state: of the fit.

    Attributes:
        is_timed: whether there is a `max_time`; without it, only `should_stop` is a reason to ask `is_heard`.
    """

    def __init__(self, state: StageState) -> None:
        self._state = state
        limit = max_time_s(state.settings.max_time)
        self._deadline = None if limit is None else time.monotonic() + limit
        self.is_timed = limit is not None

    def is_heard(self) -> bool:
        """Whether the fit ends here. Collective where there is a `max_time`: ranks' clocks may differ."""
        state = self._state
        if self._deadline is not None and not state.should_stop:
            collectives = state.runtime.collectives
            late = torch.tensor(
                [time.monotonic() >= self._deadline], dtype=torch.float32, device=collectives.device
            )
            state.should_stop = bool(collectives.all_reduce(late, "max").item())
        if not state.should_stop:
            return False
        least_epochs, least_steps = state.settings.min_epochs or 0, state.settings.min_steps or 0
        return state.progress.epoch >= least_epochs and state.progress.step >= least_steps
