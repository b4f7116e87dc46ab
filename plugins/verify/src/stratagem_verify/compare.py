"""The allowed differences between the numbers of two runs, and the largest differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from stratagem_testing.comparison import furthest, largest_difference, norm_of_difference
from torch import Tensor

from stratagem_verify.observed import Seen

NOISE = 10.0
"""Factor on the difference that rounded weights make in one process. It is allowed between runs."""
LEAST = 1e-5
"""Allowed relative difference. Sums in another order differ by less."""
TRAINED = 0.05
"""Allowed difference between weights at the end, relative to their distance from the start. It is large, because
optimizers that use the sign of a gradient magnify its rounding errors."""

Losses = Sequence[float | None]


@dataclass(frozen=True)
class Apart:
    """The largest of the differences between two runs that are too large."""

    where: str
    """Where it is, such as "step 3" or the name of a parameter."""
    ours: float
    theirs: float

    def __str__(self) -> str:
        return f"{self.ours:.6g} and {self.theirs:.6g}"


def mean_losses(ranks: Sequence[Seen]) -> list[float | None]:
    """Return the mean over ranks of each micro-batch's loss; None if a rank had none."""
    return [mean(row) for row in zip(*(seen.losses for seen in ranks))]


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def losses_apart(ours: Losses, theirs: Losses, noise: Losses | None, tolerance: float) -> Apart | None:
    """Return the first losses that differ by more than rounding errors.

    Args:
        ours: losses per micro-batch.
        theirs: losses of one process.
        noise: losses of one process with rounded weights; None if unknown.
        tolerance: allowed relative difference.
    """
    scale = max((abs(each) for each in theirs if each is not None), default=0.0)
    noises = theirs if noise is None else noise
    for index, (one, other) in enumerate(zip(ours, theirs)):
        if one is None or other is None:
            continue
        rounded = noises[index] if index < len(noises) else other
        allowed = tolerance * scale + NOISE * abs((other if rounded is None else rounded) - other)
        if not (abs(one - other) <= allowed or (math.isnan(one) and math.isnan(other)) or one == other):
            return Apart(f"micro-batch {index + 1}", one, other)
    return None


def gradients_apart(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    noise: Mapping[str, Tensor] | None,
    names: Collection[str],
    tolerance: float,
) -> Apart | None:
    """Return the parameter whose gradients differ most, if they differ by more than rounding errors.

    Args:
        ours: weights after a step of plain SGD.
        theirs: weights of one process after it.
        start: weights before it.
        noise: weights of one process that started with rounded weights, minus the rounding; None if unknown.
        names: names of the parameters.
        tolerance: allowed difference, relative to a parameter's largest gradient.
    """
    mine, others = (
        {name: each[name].double() - start[name].double() for name in names} for each in (ours, theirs)
    )

    def allowed(name: str) -> float:
        if not others[name].numel():
            return 0.0
        epsilon = torch.finfo(start[name].dtype).eps * float(start[name].abs().max())
        rounded = largest_difference(noise[name], theirs[name]) if noise else 0.0
        return 10 * tolerance * float(others[name].abs().max()) + 4 * epsilon + NOISE * rounded

    parts, name = furthest(mine, others, allowed, measure=largest_difference)
    return Apart(name, float(mine[name].norm()), float(others[name].norm())) if parts > 1.0 else None


def weights_apart(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    noise: Mapping[str, Tensor] | None,
    names: Collection[str],
    share: float = TRAINED,
) -> tuple[str, float] | None:
    """Return the tensor with the largest difference, relative to its distance from the start, if above `share`."""

    def allowed(name: str) -> float:
        if not theirs[name].is_floating_point():
            return 0.0
        rounded = norm_of_difference(noise[name], theirs[name]) if noise else 0.0
        epsilon = 16 * torch.finfo(theirs[name].dtype).eps * float(theirs[name].double().norm())
        return share * norm_of_difference(start[name], theirs[name]) + NOISE * rounded + epsilon

    parts, name = furthest(ours, theirs, allowed, names, norm_of_difference)
    if not parts > 1.0:
        return None
    apart, way = (norm_of_difference(one[name], theirs[name]) for one in (ours, start))
    return name, apart / way if way and theirs[name].is_floating_point() else math.inf


def unequal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors of the same shape that aren't bitwise equal, and of those that one side lacks."""
    lacking = sorted(ours.keys() ^ theirs.keys())
    return lacking + [
        name
        for name in ours.keys() & theirs.keys()
        if ours[name].shape == theirs[name].shape
        and not torch.equal(ours[name].to(theirs[name].dtype).nan_to_num(), theirs[name].nan_to_num())
    ]
