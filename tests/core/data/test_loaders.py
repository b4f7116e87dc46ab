"""What isn't one loader is refused, and data without a batch are reported."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stratagem.data.loaders import can_be_read_once, holds_loaders, no_batch, refuse_several
from stratagem.errors import DataError

DATA = TensorDataset(torch.zeros(4))
LOADER = DataLoader(DATA)
BATCH = torch.zeros(2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Combined:
    """As Lightning's, in either of its versions."""

    def __init__(self, *names):
        for name in names:
            setattr(self, name, [])

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    "loader",
    [
        LOADER,
        [BATCH, BATCH],
        (BATCH,),
        [],
        [[BATCH, BATCH]],
        [{"x": BATCH}],
        Combined("mode"),
        Combined("loaders"),
    ],
)
def test_one_loader_is_taken(loader):
    refuse_several(loader)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            {"a": LOADER},
            "^a dict of loaders was given where one loader belongs: pass one DataLoader at a time",
        ),
        ({"a": BATCH}, "^a dict isn't a loader, since its keys would be read as batches: pass a list"),
        ({}, "^a dict isn't a loader"),
        (None, "^an object of NoneType isn't a loader: pass a DataLoader, or an iterable of batches"),
        (3, "^an object of int isn't a loader"),
        ([LOADER, LOADER], "^a list of 2 loaders was given"),
        ((LOADER,), "^a tuple of 1 loaders was given"),
        ([BATCH, iter([BATCH])], "^a list of 2 loaders was given"),
        (Combined("mode", "iterables"), "^a Combined was given where one loader belongs"),
        (Combined("mode", "loaders"), "^a Combined was given where one loader belongs"),
    ],
)
def test_several_are_refused(loader, said):
    with pytest.raises(DataError, match=said):
        refuse_several(loader)


@pytest.mark.parametrize(
    "value",
    [
        LOADER,
        DATA,
        Stream(),
        iter([1]),
        SimpleNamespace(dataset=DATA),
        SimpleNamespace(batch_sampler=None),
        [BATCH, LOADER],
        (LOADER,),
    ],
)
def test_loaders_are_recognised_by_what_they_have(value):
    assert holds_loaders([BATCH, value])


@pytest.mark.parametrize("value", [BATCH, [BATCH], {"dataset": LOADER}, "text", None, [[LOADER]], "dataset"])
def test_batches_are_none(value):
    assert not holds_loaders([value, value])


def test_only_the_first_values_are_looked_at():
    def values(count):
        yield from [BATCH] * count
        yield LOADER
        raise AssertionError("read on")

    assert holds_loaders(values(15))
    assert not holds_loaders([BATCH] * 16 + [LOADER])
    assert holds_loaders([[BATCH] * 15 + [LOADER]])
    assert not holds_loaders([[BATCH] * 16 + [LOADER]])


def test_iterators_can_be_read_once():
    assert can_be_read_once(iter([1]))
    assert can_be_read_once(value for value in [1])
    assert not any(can_be_read_once(each) for each in ([1], LOADER, DATA, {}))


def test_what_to_do_about_data_without_a_batch():
    error = no_batch("epoch 1", "3 samples in order", [])
    assert isinstance(error, DataError)
    assert str(error) == "epoch 1 has no batch (3 samples in order): give each rank at least one batch"
    said = str(no_batch("rank 2", "batches as they come", iter([])))
    assert said.startswith(
        "rank 2 has no batch (batches as they come): a list_iterator can be read only once: pass "
    )
