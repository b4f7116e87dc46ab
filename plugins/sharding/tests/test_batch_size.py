from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from stratagem_sharding.batch_size import batch_size_of

Pair = namedtuple("Pair", "x y")


@dataclass
class Sentences:
    name: str
    tokens: torch.Tensor


X = torch.zeros(6, 2)


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, torch.zeros(5)),
        [X, X],
        {"name": "a", "x": X},
        Pair(X, X),
        Sentences("a", X),
        (torch.tensor(1.0), X),
        [[X, X], X],
        np.zeros((6, 3)),
        ["a"] * 6,
        [("a",) * 6, ("b",) * 6],
        ([1, 2, 3, 4, 5, 6], None),
    ],
)
def test_the_number_of_samples_is_found(batch):
    assert batch_size_of(batch) == 6


@pytest.mark.parametrize(
    "batch", [None, 3, "text", torch.tensor(1.0), [torch.tensor(1.0)], {}, (1.0, 2.0), ()]
)
def test_none_where_nothing_tells(batch):
    assert batch_size_of(batch) is None


def test_an_empty_batch_has_none_in_it():
    assert batch_size_of((torch.zeros(0, 2), torch.zeros(0))) == 0
    assert batch_size_of([]) == 0
