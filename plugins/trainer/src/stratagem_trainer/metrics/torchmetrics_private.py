"""What torchmetrics keeps to itself, and a trainer needs: all private names of it that are used are here.

plugins/trainer/tests/metrics/test_torchmetrics_private.py tells when it changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def reductions_of(metric: nn.Module) -> dict[str, Callable[[Any], Any] | None]:
    """State → how ranks' values become one, as `add_state` was told; None keeps them side by side."""
    return dict(metric._reductions)  # type: ignore[arg-type]  # a torchmetrics.Metric


def value_of_batch(metric: nn.Module) -> Any:
    """What calling the metric returned last, of that batch alone; None after an `update` or a `reset`."""
    return metric._forward_cache


def count_of_updates(metric: nn.Module) -> int:
    """How many updates are in its states."""
    return int(metric._update_count)  # type: ignore[arg-type]  # a torchmetrics.Metric


def set_states(metric: nn.Module, states: dict[str, Any], updates: int) -> None:
    """Put states in the place of its own, and forget what was computed of them."""
    for name, value in {**states, "_update_count": updates, "_computed": None}.items():
        setattr(metric, name, value)
