"""Which rank keeps another's files."""

from __future__ import annotations

import pytest
from stratagem_memory_checkpoint.exchange import neighbours


@pytest.mark.parametrize(
    ("nodes", "targets"),
    [
        ([0, 0, 0], []),
        ([0, 1], [1, 0]),
        ([0, 0, 1, 1], [2, 3, 0, 1]),
        ([0, 0, 0, 1], [3, 3, 3, 0]),
        ([0, 1, 1, 4], [1, 3, 3, 0]),
    ],
)
def test_the_next_node_has_them(nodes: list[int], targets: list[int]) -> None:
    assert neighbours(nodes) == targets


@pytest.mark.parametrize(
    ("nodes", "targets"),
    [
        ([0, 1, 2, 3], [2, 3, 0, 1]),
        ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 0, 1]),
        ([0, 1], [1, 0]),
        ([0, 0, 1, 1, 2, 2, 3, 3], [4, 5, 6, 7, 0, 1, 2, 3]),
    ],
)
def test_a_node_of_the_next_unit_has_them_where_two_are_lost_together(
    nodes: list[int], targets: list[int]
) -> None:
    assert neighbours(nodes, 2) == targets
