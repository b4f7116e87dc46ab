"""Axes are put in order and checked against each other, whatever they are called."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from stratagem.errors import CombinationError, ConfigError
from stratagem.strategies.axis import Axis, AxisSteps, composed


class Plain(Axis):
    mesh_order = setup_order = 10
    reads_same_batches = False
    sends = "nothing"

    def apply(self, target: Any) -> AxisSteps:
        return AxisSteps()


class Outer(Plain):
    name = "outer"


class Inner(Plain):
    name = "inner"
    mesh_order = 20
    reads_same_batches = True


class Middle(Plain):
    name = "middle"
    mesh_order = 15


class Lonely(Plain):
    name = "lonely"
    excludes: ClassVar[dict[str, str]] = {"inner": "both split the same layers"}


class Leaning(Plain):
    name = "leaning"

    def companions(self) -> tuple[Axis, ...]:
        return (Middle(1),)


def test_axes_are_ordered_by_their_place_in_the_mesh() -> None:
    composition = composed([Inner(2), Middle("auto"), Outer(2)])
    assert [axis.name for axis in composition.axes] == ["outer", "middle", "inner"]
    assert composition.sizes(12) == {"outer": 2, "middle": 3, "inner": 2}
    assert composition.data_axes() == ["outer", "middle"]
    assert composition.described() == "outer=2+middle=auto+inner=2"


def test_axes_in_one_place_are_ordered_by_name() -> None:
    assert [axis.name for axis in composed([Outer(2), Lonely(2)]).axes] == ["lonely", "outer"]


def test_a_companion_has_one_rank_unless_it_is_named() -> None:
    composition = composed([Leaning(4)])
    assert composition.sizes(4) == {"leaning": 4, "middle": 1}
    assert [axis.name for axis in composition.given] == ["leaning"]
    assert composed([Leaning(2), Middle(2)]).sizes(4) == {"leaning": 2, "middle": 2}


@pytest.mark.parametrize(
    ("axes", "processes", "instead"),
    [
        (
            [Outer(2), Inner(3)],
            4,
            "a mesh of 2 × 3, and the run has 4 processes: give sizes that multiply to 4, such ",
        ),
        ([Outer(2), Inner(2)], 8, "such as outer=auto\\+inner=2"),
        ([Outer("auto"), Inner(3)], 4, "axes outer=auto\\+inner=3 make a mesh of auto × 3"),
        ([Outer(4)], 1, "such as outer=auto"),
    ],
)
def test_sizes_that_do_not_multiply_to_the_processes(axes: Any, processes: int, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        composed(axes).sizes(processes)


def test_what_cannot_be_composed_is_refused_by_a_sentence_that_names_both() -> None:
    with pytest.raises(
        CombinationError, match="axis 'lonely' can't be composed with axis 'inner': both split the"
    ):
        composed([Inner(2), Lonely(2)])
    with pytest.raises(ConfigError, match="axis 'inner' is given twice"):
        composed([Inner(2), Inner(2)])
    with pytest.raises(ConfigError, match="axes 'inner' and 'outer' both have the size 'auto'"):
        composed([Inner(), Outer()])
    with pytest.raises(ConfigError, match="has no axes"):
        composed([])
    with pytest.raises(ConfigError, match="'inner' is not an axis"):
        composed(["inner"])  # type: ignore[list-item]  # on purpose


def test_steps_do_nothing_unless_overridden() -> None:
    steps = AxisSteps()
    with steps.computing():
        assert steps.map_output(3) == 3
    assert not steps.has_gradients_to_complete
