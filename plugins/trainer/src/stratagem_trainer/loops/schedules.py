"""Stepping the learning rate schedulers that are due, alike on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from stratagem_trainer.loops.optimization import Schedule

if TYPE_CHECKING:
    from stratagem_trainer.live import Live


def step_schedules(live: Live, interval: str, count: int, stepped: Collection[int] | None = None) -> None:
    """Step what is due after `count` steps or epochs. Collective where a scheduler takes a metric.

    Args:
        live: the stage's objects.
        interval: "step" or "epoch".
        count: how many there were.
        stepped: the optimizers that were stepped; all where None.

    Raises:
        ConfigError: (on every rank) a scheduler's metric wasn't logged.
    """
    due = [
        schedule
        for schedule in live.schedules
        if schedule.is_due(interval, count) and (stepped is None or schedule.optimizer in stepped)
    ]
    if due:
        metrics = _agreed_metrics(live, due)
        for schedule in due:
            schedule.step(metrics)


def _agreed_metrics(live: Live, due: Sequence[Schedule]) -> dict[str, float]:
    """Return rank 0's values: what isn't reduced over ranks would give each another learning rate."""
    if not any(schedule.takes_metric for schedule in due):
        return {}
    collectives = live.runtime.collectives
    metrics: dict[str, float] = collectives.broadcast(
        live.metrics.latest() if collectives.rank == 0 else None
    )
    return metrics
