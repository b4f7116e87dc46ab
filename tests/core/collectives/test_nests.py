"""Containers are taken apart and put together again."""

from __future__ import annotations

import pickle
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from stratagem.collectives.nests import leaves_in, opened


class Pair(NamedTuple):
    first: int
    second: int


@dataclass
class Record:
    inputs: list[int]
    target: int
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.size = len(self.inputs)


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ([1, 2], [10, 20]),
        ((1, 2), (10, 20)),
        (Pair(1, 2), Pair(10, 20)),
        ({"a": 1, "b": 2}, {"a": 10, "b": 20}),
        (OrderedDict(b=1, a=2), OrderedDict(b=10, a=20)),
        (UserDict(a=1, b=2), UserDict(a=10, b=20)),
    ],
)
def test_a_container_is_filled_with_other_items(value, filled):
    container = opened(value)
    assert container.items == (1, 2)
    made = container.filled([10, 20])
    assert made == filled
    assert type(made) is type(value)


def test_a_dataclass_is_made_by_its_constructor():
    container = opened(Record([1, 2], 3))
    assert container.keys == ("inputs", "target")
    assert container.filled([[1, 2, 3], 4]) == Record([1, 2, 3], 4)


@pytest.mark.parametrize("value", ["text", 3, None, Record, {1, 2}])
def test_what_is_no_container_is_a_leaf(value):
    assert opened(value) is None
    assert list(leaves_in(value)) == [value]


def test_leaves_come_in_order():
    assert list(leaves_in([1, {"a": (2, Record([3], 4))}, Pair(5, 6)])) == [1, 2, 3, 4, 5, 6]


def test_equal_containers_are_equal_after_sending():
    container = opened(Pair(1, 2))
    assert pickle.loads(pickle.dumps(container)) == container
    assert opened([1, 2]) != opened((1, 2))
