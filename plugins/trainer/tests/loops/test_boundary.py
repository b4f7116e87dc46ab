"""Where a stage may end: at the batches that all ranks have, or nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_trainer.loops.boundary import Boundary, StopNow
from threads import on_threads


class Due:
    """A watch for which the run is always to stop, and which counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def is_due(self) -> bool:
        self.asked += 1
        return True


def passed(collectives: Any, num_batches: int | None, may_stop: bool) -> tuple[int, int, int]:
    """Return how many of 7 batches were passed, and how often the watch was asked and the heart beat."""
    watch, beats = Due(), []
    boundary = Boundary(watch, lambda: beats.append(1), collectives)  # type: ignore[arg-type]  # stands for a watch
    pass_batch, index = boundary.of_evaluation(num_batches, may_stop), 0
    try:
        for index in range(7):
            pass_batch(index)
    except StopNow:
        return index, watch.asked, len(beats)
    return 7, watch.asked, len(beats)


@pytest.mark.parametrize(
    ("world_size", "lengths", "may_stop", "expected"),
    [
        (1, [None], True, [(0, 1, 1)]),
        (1, [None], False, [(7, 0, 7)]),
        (2, [5, 7], True, [(0, 1, 1)] * 2),
        (2, [5, 7], False, [(7, 0, 7)] * 2),
        # A rank that doesn't know its number could be alone at any batch.
        (2, [None, 7], True, [(7, 0, 7)] * 2),
    ],
)
def test_a_stage_stops_only_where_it_may(
    world_size: int, lengths: list[Any], may_stop: bool, expected: list[Any]
) -> None:
    assert on_threads(world_size, lambda c: passed(c, lengths[c.rank], may_stop)) == expected


def test_ranks_stop_at_no_batch_that_one_lacks() -> None:
    class FromThird(Due):
        def is_due(self) -> bool:
            return super().is_due() and self.asked > 3

    def work(collectives: Any) -> tuple[int, int]:
        watch = FromThird()
        boundary = Boundary(watch, None, collectives)  # type: ignore[arg-type]  # stands for a watch
        pass_batch = boundary.of_evaluation(3 + collectives.rank, True)
        for index in range(3 + collectives.rank):
            pass_batch(index)
        return index, watch.asked

    assert on_threads(2, work) == [(2, 3), (3, 3)]
