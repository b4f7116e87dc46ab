"""An epoch begun after its first batches reads what the whole one would have read."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stratagem.data.skipping import drop_first, iterate_after


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


def tolist(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_the_rest_is_read_and_nothing_before_it(numbers, count):
    data = numbers(7)
    loader = DataLoader(data, batch_size=2)
    sampler = loader.batch_sampler
    assert tolist(iterate_after(loader, count)) == [[0, 1], [2, 3], [4, 5], [6]][count:]
    assert data.reads == list(range(7))[2 * count :]
    assert loader.batch_sampler is sampler
    # The next epoch is whole.
    assert len(tolist(loader)) == 4


@pytest.mark.parametrize("count", [0, 2, 5])
def test_without_batches_the_sampler_is_skipped(numbers, count):
    data = numbers(4)
    assert tolist(iterate_after(DataLoader(data, batch_size=None), count)) == list(range(4))[count:]
    assert data.reads == list(range(4))[count:]


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_of_an_iterable_batches_are_read_and_dropped(count):
    whole = [[0, 1], [2, 3], [4, 5], [6]]
    assert tolist(iterate_after(DataLoader(Stream(), batch_size=2), count)) == whole[count:]
    assert list(iterate_after([1, 2, 3], count)) == [1, 2, 3][count:]


def test_what_is_random_has_been_drawn_as_in_the_whole_epoch(numbers):
    loader = DataLoader(numbers(12), batch_size=2, shuffle=True)
    torch.manual_seed(3)
    whole = tolist(loader)
    after_whole = torch.rand(1)
    torch.manual_seed(3)
    assert tolist(iterate_after(loader, 4)) == whole[4:]
    assert torch.equal(torch.rand(1), after_whole)


def test_dropping_more_than_there_are_leaves_none():
    iterator = iter([1, 2, 3])
    assert drop_first(iterator, 2) is iterator
    assert list(iterator) == [3]
    assert list(drop_first(iter([1]), 5)) == []
    assert list(drop_first(iter([1]), 0)) == [1]
