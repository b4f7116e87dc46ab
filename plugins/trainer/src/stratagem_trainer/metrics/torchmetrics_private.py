"""What torchmetrics keeps to itself, and a trainer needs: all private names of it that are used are here.

plugins/trainer/tests/metrics/test_torchmetrics_private.py fails when it changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def reductions_of(metric: nn.Module) -> dict[str, Callable[[Any], Any] | None]:
    """State → how ranks' values are reduced, as passed to `add_state`; None stacks them."""
    return dict(metric._reductions)  # type: ignore[arg-type]  # a torchmetrics.Metric


def value_of_batch(metric: nn.Module) -> Any:
    """The last batch's value, as calling the metric returned it; None after an `update` or a `reset`."""
    return metric._forward_cache


def count_of_updates(metric: nn.Module) -> int:
    """How many updates are in its states."""
    return int(metric._update_count)  # type: ignore[arg-type]  # a torchmetrics.Metric


def set_states(metric: nn.Module, states: dict[str, Any], updates: int) -> None:
    """Replace the metric's states, and clear the values computed from them."""
    for name, value in {**states, "_update_count": updates, "_computed": None}.items():
        setattr(metric, name, value)
