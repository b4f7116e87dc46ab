"""Predictions of all shapes, dealt out in turn and put together again."""

from collections import OrderedDict, namedtuple
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from stratagem_trainer.loops.predictions import in_order, merge_predictions

Output = namedtuple("Output", "logits names")


def tensors(samples):
    return torch.tensor(samples, dtype=torch.float64).reshape(-1, 1).expand(-1, 3)


MAKERS = {
    "tensor": tensors,
    "array": lambda samples: np.array(samples, dtype=np.int16),
    "list": lambda samples: [f"sample {sample}" for sample in samples],
    "list of tensors of any shape": lambda samples: [torch.full((sample,), sample) for sample in samples],
    "tuple of strings": lambda samples: tuple(map(str, samples)),
    "tuple": lambda samples: (tensors(samples), [str(sample) for sample in samples]),
    "dict": lambda samples: {
        "logits": tensors(samples),
        "inner": {"ids": torch.tensor(samples)},
        "none": None,
    },
    "ordered dict": lambda samples: OrderedDict(b=torch.tensor(samples), a=tensors(samples)),
    "named tuple": lambda samples: Output(tensors(samples), list(samples)),
    "list of tensors by head": lambda samples: [tensors(samples), *[torch.tensor(samples)] * 4],
}


def deal(make, length, world_size, batch_size):
    parts = []
    for rank in range(world_size):
        own = list(range(rank, length, world_size))
        parts.append([make(own[i : i + batch_size]) for i in range(0, len(own), batch_size)])
    return parts


def same(left, right):
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right):
            same(one, other)
    else:
        assert left == right


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("length", "world_size", "batch_size"),
    [(13, 2, 4), (9, 3, 4), (3, 4, 2), (16, 2, 8), (6, 4, 2), (1, 2, 4)],
)
def test_the_result_is_what_one_rank_gives(kind, length, world_size, batch_size):
    make = MAKERS[kind]
    (expected,) = deal(make, length, 1, batch_size)
    sizes = deal(len, length, world_size, batch_size)
    same(merge_predictions(deal(make, length, world_size, batch_size), sizes, batch_size), expected)


@pytest.mark.parametrize("kind", sorted(MAKERS.keys() - {"list of tensors of any shape"}))
def test_sizes_follow_from_the_predictions(kind):
    make = MAKERS[kind]
    (expected,) = deal(make, 13, 1, 4)
    same(merge_predictions(deal(make, 13, 2, 4)), expected)


def test_given_sizes_decide_where_shapes_mislead():
    # Two heads, and batches of two: a list as long as the batch is taken for its items only if all are.
    parts = [[[torch.tensor([0, 2]), torch.tensor([0, 20])]], [[torch.tensor([1]), torch.tensor([10])]]]
    same(
        merge_predictions(parts, [[2], [1]]),
        [[torch.tensor([0, 1]), torch.tensor([0, 10])], [torch.tensor([2]), torch.tensor([20])]],
    )
    # Three rows, or one, that belong to a batch of two.
    for rows in (3, 1):
        with pytest.warns(UserWarning, match="can't be split"):
            merge_predictions([[torch.zeros(rows, 2)], [torch.zeros(rows, 2)]], [[2], [2]])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.5, 0.25),
        (torch.tensor(1.0), torch.tensor(2.0)),
        (torch.zeros(2, 5), torch.zeros(2, 7)),
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}),
        ({}, {}),
        ((torch.zeros(2), 1.0), (torch.zeros(2), 2.0)),
        (torch.zeros(2), [0.0, 0.0]),
        (torch.zeros(2), np.zeros(2)),
        (torch.zeros(2), torch.tensor(1.0)),
    ],
)
def test_what_can_t_be_split_is_kept_per_batch_in_turn(first, second):
    with pytest.warns(UserWarning, match="in the order of batches and ranks"):
        merged = merge_predictions([[first, "third"], [second]])
    assert merged[0] is first
    assert merged[1] is second
    assert merged[2] == "third"


def test_no_predictions_are_no_trouble():
    assert merge_predictions([[None, None], [None]]) == [None, None, None]
    assert merge_predictions([[], []]) == []
    assert merge_predictions([[]]) == []


def test_one_rank_s_predictions_are_its_own():
    own = [0.5, torch.zeros(2)]
    assert merge_predictions([own]) is own


def test_batches_of_one_sample_stay_batches_of_one() -> None:
    """Three samples that two ranks predicted one by one, without a loader that says how many a batch has."""
    parts = [[torch.tensor([0.0]), torch.tensor([2.0])], [torch.tensor([1.0])]]
    assert [each.tolist() for each in merge_predictions(parts)] == [[0.0], [1.0], [2.0]]


class Loader:
    """What a loader of an evaluation says of its batches."""

    def __init__(self, sizes, batch_size=2):
        self.its_sizes, self.batch_size = sizes, batch_size

    def sizes(self, parts):
        return self.its_sizes


def test_what_a_loader_knows_brings_predictions_into_order():
    parts = [[torch.tensor([0.0, 2.0])], [torch.tensor([1.0])]]
    merged = in_order(Loader([[2], [1]]), parts, warns=True)
    assert [each.tolist() for each in merged] == [[0.0, 1.0], [2.0]]
    # Of a loader that was left as it is, ranks come one after the other.
    assert in_order(Loader(None), [["a", "b"], ["c"]], warns=True) == ["a", "b", "c"]


@pytest.mark.parametrize("warns", [True, False])
def test_one_process_warns_of_another_order(warns):
    expected = pytest.warns(UserWarning, match="can't be split") if warns else nullcontext()
    with expected:
        assert in_order(Loader([[2], [1]]), [[0.5], [0.25]], warns=warns) == [0.5, 0.25]


def test_a_prediction_of_unknown_size_leaves_all_in_turn():
    with pytest.warns(UserWarning, match="can't be split"):
        merged = merge_predictions([[torch.zeros(2), 0.5], [torch.zeros(2)]])
    assert [isinstance(each, torch.Tensor) for each in merged] == [True, True, False]


def test_predictions_of_no_sample_are_joined_to_none():
    same(merge_predictions([[torch.zeros(0)], [torch.zeros(0)]]), [])
    same(merge_predictions([[torch.zeros(2)], [torch.zeros(0)]]), [torch.zeros(2)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0, 2.0], torch.zeros(2)),
        (torch.zeros(2), [1.0, 2.0]),
        ((torch.zeros(2), ["a", "b"]), [torch.zeros(2), ["a", "b"]]),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(2)}),
        ({"a": torch.zeros(2), "b": torch.zeros(2)}, {"a": torch.zeros(2)}),
        ({"a": torch.zeros(2)}, [("a", torch.zeros(2))]),
        (Output(torch.zeros(2), 1.0), (torch.zeros(2), 1.0)),
        ((torch.zeros(2), 1.0, 2.0), (torch.zeros(2), 1.0, 2.0)),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, 3)}),
        (np.zeros((2, 3)), np.zeros((2, 4))),
        (None, torch.zeros(2)),
        (torch.zeros(2), None),
        (Output(torch.zeros(2), 1.0), Output(torch.zeros(2), 2.0)),
        ([torch.zeros(2), 1.0, 2.0], [torch.zeros(2), 1.0, 2.0]),
        ("ab", "cd"),
    ],
)
def test_predictions_of_two_kinds_are_kept_per_batch(first, second):
    with pytest.warns(UserWarning, match="can't be split"):
        merged = merge_predictions([[first], [second]], [[2], [2]])
    assert merged[0] is first
    assert merged[1] is second


def test_the_first_prediction_gives_the_order_of_keys():
    parts = [
        [{"b": torch.tensor([0]), "a": torch.tensor([0])}],
        [{"a": torch.tensor([1]), "b": torch.tensor([1])}],
    ]
    (merged,) = merge_predictions(parts, [[1], [1]], 2)
    same(merged, {"b": torch.tensor([0, 1]), "a": torch.tensor([0, 1])})


def test_a_tuple_that_is_as_long_as_its_batch_and_not_split_by_its_values_is_of_samples():
    """Two strings are the two samples; so are two numbers, whose columns can't be split."""
    for first, second, expected in (
        (("a", "c"), ("b",), [("a", "b"), ("c",)]),
        ((1, 3), (2,), [(1, 2), (3,)]),
    ):
        same(merge_predictions([[first], [second]], [[2], [1]], 2), expected)
