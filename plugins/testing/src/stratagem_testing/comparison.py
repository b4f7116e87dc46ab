"""Distances between the tensors of two trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

Measure = Callable[[Tensor, Tensor], float]
"""Returns the distance between two tensors of the same shape."""


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of elements; 0 for tensors without elements."""
    return float((_wide(one) - _wide(other)).abs().max()) if one.numel() else 0.0


def rms_difference(one: Tensor, other: Tensor) -> float:
    """Return the root mean square of the differences; 0 for tensors without elements."""
    return float((_wide(one) - _wide(other)).abs().square().mean().sqrt()) if one.numel() else 0.0


def norm_of_difference(one: Tensor, other: Tensor) -> float:
    """Return the Euclidean norm of the difference."""
    return float((_wide(one) - _wide(other)).norm())


def furthest(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    allowed: Callable[[str], float],
    names: Iterable[str] | None = None,
    measure: Measure = rms_difference,
) -> tuple[float, str]:
    """Return the largest ratio of a tensor's distance to the allowed one, and the tensor's name.

    Args:
        ours: name → tensor.
        theirs: name → tensor, with at least the same names.
        allowed: returns the allowed distance of a tensor; if it is 0, any difference is infinite.
        names: names of the tensors to compare; by default all of `ours`.
        measure: measures the distance.

    Returns:
        0 and "" if all are equal. Infinity and the tensor's name if the shapes of a tensor differ. NaN equals NaN,
        and is infinitely far from a number.
    """
    worst, which = 0.0, ""
    for name in ours if names is None else names:
        if ours[name].shape != theirs[name].shape:
            return math.inf, f"{name} of shape {tuple(ours[name].shape)}"
        distance = _distance(ours[name], theirs[name], measure)
        if distance == 0.0:
            continue
        limit = allowed(name)
        parts = distance / limit if limit > 0 else math.inf
        if parts > worst:
            worst, which = parts, name
    return worst, which


def _distance(one: Tensor, other: Tensor, measure: Measure) -> float:
    """Measure elements that are finite in both tensors. Others must be equal, NaN to NaN."""
    distance = measure(one, other)
    if not math.isnan(distance):
        return distance
    is_finite = one.isfinite() & other.isfinite()
    rest = _wide(one[~is_finite]), _wide(other[~is_finite])
    if not torch.allclose(*rest, rtol=0.0, atol=0.0, equal_nan=True):
        return math.inf
    return measure(one[is_finite], other[is_finite])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
