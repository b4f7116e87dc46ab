"""The first value of a run that isn't finite."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem_diff.files import Place
from stratagem_diff.side import LocalValue, Side

TRAINED = ("output gradient", "parameter gradient", "parameter", "optimizer state")
"""What is finite in a step that trains well. Outputs and buffers may be masks, which have infinities."""


@dataclass(frozen=True)
class NonFinite:
    """A value that isn't finite."""

    place: Place
    ranks: tuple[int, ...]
    """Ranks on which it isn't."""


def first_non_finite(side: Side) -> NonFinite | None:
    """Return the first value that isn't finite, in the order in which values come about.

    Returns:
        None where gradients, parameters and optimizer states are finite.
    """
    bad: list[NonFinite] = []
    for step in (0, *range(side.first_step, side.first_step + side.steps)):
        for place in side.of_step(step):
            ranks = {local.rank for local in side.places[place] if not _is_finite(local)}
            if ranks:
                bad.append(NonFinite(place, tuple(sorted(ranks))))
    return bad[0] if any(each.place.kind in TRAINED for each in bad) else None


def _is_finite(local: LocalValue) -> bool:
    data = local.value.data
    return not data.is_floating_point() or bool(data.isfinite().all())
