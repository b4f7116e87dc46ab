"""How far tensors are apart: by several measures, in parts of what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from stratagem_testing.comparison import furthest, largest_difference, norm_of_difference, rms_difference
from torch import Tensor

NAN, INF = math.nan, math.inf


def tensors(**values: list[float]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("measure", "expected"),
    [(largest_difference, 4.0), (rms_difference, 12.5**0.5), (norm_of_difference, 5.0)],
)
def test_measures(measure: Any, expected: float) -> None:
    one, other = torch.tensor([1.0, -3.0]), torch.tensor([4.0, 1.0])
    assert measure(one, other) == pytest.approx(expected)
    assert measure(torch.zeros(0), torch.zeros(0)) == 0.0
    # Numbers of 64 bits and complex ones aren't rounded.
    wide = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64)
    assert measure(wide, torch.ones(2)) > 0
    assert largest_difference(torch.tensor([1j]), torch.tensor([-1j])) == 2.0


def test_the_furthest_in_parts_of_what_is_allowed() -> None:
    ours, theirs = tensors(a=[1.0, 2.0], b=[3.0], c=[5.0]), tensors(a=[1.0, 2.5], b=[3.0], c=[5.25])
    allowed = {"a": 10.0, "b": 0.0, "c": 0.5}
    assert furthest(ours, theirs, allowed.__getitem__, measure=largest_difference) == (0.5, "c")
    assert furthest(ours, theirs, allowed.__getitem__, ["a", "b"], largest_difference) == (0.05, "a")
    assert furthest(ours, ours, allowed.__getitem__) == (0.0, "")
    assert furthest(ours, theirs, lambda name: 0.0) == (INF, "a")
    assert furthest(tensors(a=[1.0]), theirs, lambda name: 1.0) == (INF, "a of shape (1,)")


@pytest.mark.parametrize("last", [1e-9, 0.5])
def test_a_number_that_is_not_finite_equals_itself_alone(last: float) -> None:
    theirs = tensors(a=[1.0, NAN], b=[INF, 1.0], c=[1.0])
    # What comes later and is nearer doesn't hide it.
    ours = {**theirs, "c": torch.tensor([1.0 + last])}
    worst, which = furthest(ours, theirs, lambda name: 1.0)
    assert (round(worst, 6), which) == ((0.5, "c") if last == 0.5 else (0.0, ""))
    for a in ([1.0, 2.0], [NAN, NAN]):
        assert furthest({**ours, "a": torch.tensor(a)}, theirs, lambda name: 1.0) == (INF, "a")
    assert furthest({**ours, "b": torch.tensor([-INF, 1.0])}, theirs, lambda name: 1.0) == (INF, "b")
    assert furthest({**theirs, "a": torch.tensor([1.25, NAN])}, theirs, lambda name: 1.0) == (0.25, "a")
