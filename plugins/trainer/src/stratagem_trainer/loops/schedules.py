"""Step the learning rate schedulers that are due, in the same way on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from stratagem_trainer.loops.optimizers import Schedule

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


def step_schedules(
    state: StageState,
    interval: str,
    count: int,
    stepped: Collection[int] | None = None,
    takes_metric: bool | None = None,
) -> None:
    """Step the schedulers that are due after `count` steps or epochs. Collective if a scheduler takes a metric.

    Args:
        state: the stage's objects.
        interval: "step" or "epoch".
        count: number of steps or epochs so far.
        stepped: indices of the optimizers that were stepped; None for all.
        takes_metric: True steps only schedulers that take a metric, False only the others, None all.

    Raises:
        ConfigError: (on every rank) a scheduler's metric wasn't logged.
    """
    if state.steps_schedules_by_hand:
        return
    due = [
        schedule
        for schedule in state.schedules
        if schedule.is_due(interval, count)
        and (stepped is None or schedule.optimizer in stepped)
        and takes_metric in (None, schedule.takes_metric)
    ]
    if due:
        metrics = _agreed_metrics(state, due)
        for schedule in due:
            schedule.step(metrics)


def _agreed_metrics(state: StageState, due: Sequence[Schedule]) -> dict[str, float]:
    """Return rank 0's values of the metrics. Unreduced values would give each rank another learning rate."""
    if not any(schedule.takes_metric for schedule in due):
        return {}
    metrics: dict[str, float] = state.runtime.collectives.broadcast(state.metrics.latest())
    return metrics
