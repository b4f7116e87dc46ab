"""All private names of torchmetrics that the trainer uses.

plugins/trainer/tests/metrics/test_torchmetrics_private.py fails if torchmetrics changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def reductions_of(metric: nn.Module) -> dict[str, Callable[[Any], Any] | None]:
    """Return, for each state, the function that reduces its values over ranks; None if they are only stacked."""
    return dict(metric._reductions)  # type: ignore[arg-type]  # a torchmetrics.Metric


def value_of_batch(metric: nn.Module) -> Any:
    """Return the value of the last batch, if the metric was called; None after an `update` or a `reset`."""
    return metric._forward_cache


def count_of_updates(metric: nn.Module) -> int:
    """Return the number of updates since the last reset."""
    return int(metric._update_count)  # type: ignore[arg-type]  # a torchmetrics.Metric


def set_states(metric: nn.Module, states: dict[str, Any], updates: int) -> None:
    """Replace the metric's states, and clear the values computed from them."""
    for name, value in {**states, "_update_count": updates, "_computed": None}.items():
        setattr(metric, name, value)
