"""Batches are split into parts, and the parts' outputs become the batch's."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from stratagem_sharding.chunks import merge, split

from stratagem.errors import DataError

Pair = namedtuple("Pair", "x y")  # users' batches are such


@dataclass
class Graph:
    nodes: torch.Tensor
    name: str


def test_every_container_is_cut_along_dim_0():
    x = torch.arange(5.0)
    batch = {
        "pair": Pair(x, x[:, None]),
        "graph": Graph(x, "g"),
        "names": list("abcde"),
        "scale": torch.tensor(2.0),
    }
    parts = split((("training_step", batch, 3), {}), 2)
    assert [size for _, size in parts] == [3, 2]
    ((step, second, idx), kwargs), _ = parts[1]
    assert (step, idx, kwargs) == ("training_step", 3, {})
    assert second["pair"].x.tolist() == second["graph"].nodes.tolist() == [3, 4]
    assert second["pair"].y.shape == (2, 1)
    assert (second["names"], second["graph"].name, second["scale"].item()) == (["d", "e"], "g", 2.0)


def test_a_shape_is_not_cut():
    for part, size in split((torch.zeros(2), (8, 8)), 2):
        assert (part[0].shape, part[1], size) == ((1,), (8, 8), 1)


def test_fewer_samples_than_devices_make_fewer_parts():
    assert [size for _, size in split(torch.zeros(2, 3), 4)] == [1, 1]


@pytest.mark.parametrize(
    ("batch", "what"), [(["a"], "no tensor"), ((torch.zeros(4), torch.zeros(6)), "tensors with 4, 6 entries")]
)
def test_what_cannot_be_split_is_refused(batch, what):
    with pytest.raises(DataError, match=f"{what}: give all tensors"):
        split(batch, 2)


def test_outputs_are_merged_by_what_they_are():
    first = {
        "loss": torch.tensor(1.0),
        "scores": torch.zeros(3, 2),
        "n": torch.tensor(3),
        "ids": list("abc"),
        "k": 7,
    }
    second = {
        "loss": torch.tensor(6.0),
        "scores": torch.ones(2, 2),
        "n": torch.tensor(2),
        "ids": list("de"),
        "k": 7,
    }
    merged = merge([first, second], [3, 2])
    assert merged["loss"].item() == 3.0  # by samples
    assert merged["scores"].shape == (5, 2)
    assert (merged["n"].tolist(), merged["ids"], merged["k"]) == ([3, 2], list("abcde"), 7)
    assert merge([(1.0, None), (6.0, None)], [3, 2]) == (3.0, None)
    assert merge([None, torch.tensor(4.0)], [3, 2]).item() == 4.0
    assert merge([None, None], [3, 2]) is None
    assert merge(["x", "y"], [1, 1]) == ["x", "y"]
