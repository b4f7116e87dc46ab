"""`Accumulator`: accumulates one logged value over an epoch or an evaluation, in a wide dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Union

import torch

from stratagem_trainer.metrics.reading import numbers
from stratagem_trainer.metrics.reduction import PartialReduction

Value = Union[float, torch.Tensor]
"""A float, or a detached 0-dim tensor. Reading the tensor waits for the device."""


class Accumulator:
    """Accumulates values without waiting for the device, and keeps no tensor that it is given.

    Sums are float64 for values of any dtype, because in bfloat16, 256 + 1 is 256. On a device without float64 (mps),
    they are float32.

    Args:
        op: mean, sum, min or max.
        total: the accumulated sum, minimum or maximum so far; for a mean, the weighted sum.
        weight: number of samples so far, or another weight of the mean.
    """

    __slots__ = ("op", "total", "weight")

    def __init__(self, op: str, total: Value | None = None, weight: Value = 0) -> None:
        self.op = op
        self.total: Value = _START[op] if total is None else total
        self.weight: Value = weight

    def add(self, value: Value, weight: Value) -> None:
        """Add a value with a weight, such as its number of samples."""
        total, self.weight = self.total, self.weight + weight
        alpha = weight if self.op == "mean" else 1
        if isinstance(value, torch.Tensor):
            if not isinstance(total, torch.Tensor):
                total = torch.full((), total, dtype=widest_float(value.device.type), device=value.device)
            if isinstance(alpha, torch.Tensor):
                self.total = total + value * alpha
            elif self.op in ("mean", "sum"):
                # torch.add promotes 0-dim tensors to the wider dtype before it multiplies.
                self.total = torch.add(total, value, alpha=alpha)
            else:
                choose = torch.minimum if self.op == "min" else torch.maximum
                self.total = choose(total, value.to(total.dtype))
        elif self.op in ("mean", "sum"):
            self.total = total + value * alpha
        else:
            number = total.item() if isinstance(total, torch.Tensor) else total
            self.total = _extreme(self.op, number, value)

    def partial(self) -> PartialReduction:
        """Return this rank's share. Waits for the device."""
        total, weight = as_float(self.total), self._known_weight()
        if self.op == "mean":
            total = total / weight if weight else 0.0
        return PartialReduction(self.op, total, weight)

    def _known_weight(self) -> float:
        # Counts of samples stay ints.
        return float(self.weight.item()) if isinstance(self.weight, torch.Tensor) else self.weight

    def state(self) -> list[Any]:
        """Return the arguments that construct an equal `Accumulator`. Waits for the device."""
        return [self.op, as_float(self.total), self._known_weight()]


_START = {"mean": 0.0, "sum": 0.0, "min": math.inf, "max": -math.inf}


def _extreme(op: str, one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return math.nan  # as torch.minimum and torch.maximum
    return min(one, other) if op == "min" else max(one, other)


@lru_cache
def widest_float(device_type: str) -> torch.dtype:
    """Return float64 if devices of this type support it, else float32."""
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def value_to_keep(value: torch.Tensor | float) -> Value:
    """Return a copy of a logged value, whose tensor may be changed in place later. Doesn't wait for a device."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    return float(value.item()) if value.is_cpu else value.detach().clone().reshape(())


def as_floats(values: Sequence[Value]) -> list[float]:
    """Convert logged values to floats. Waits for the device once."""
    at = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
    read = dict(zip(at, numbers([value for value in values if isinstance(value, torch.Tensor)])))
    return [read[index] if index in read else float(value) for index, value in enumerate(values)]


def as_float(value: Value) -> float:
    """Convert a logged value to a float. Waits for the device if it is a tensor."""
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)
