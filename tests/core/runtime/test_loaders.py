"""Loaders of a loop of one's own: epochs in turn, and evaluations that see each sample once."""

import copy
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from threads import on_threads
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stratagem.config import RunConfig
from stratagem.data.batches import moved
from stratagem.data.sampler import ShardedSampler
from stratagem.errors import DataError
from stratagem.plugin.component import Capabilities
from stratagem.runtime.loaders import EpochLoader, EvalLoader, distribute_loader

TO_CPU = partial(moved, device=torch.device("cpu"))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def numbers(length=8, batch_size=2, **how):
    return DataLoader(TensorDataset(torch.arange(length)), batch_size, **how)


def lists(batches):
    return [batch[0].tolist() for batch in batches]


def shared(collectives, loader, evaluation=False, share=True, features=(), seed=3, mover=TO_CPU):
    run = SimpleNamespace(
        capabilities=Capabilities(features=frozenset(features)), config=RunConfig(seed=seed)
    )
    session = SimpleNamespace(collectives=collectives, run=run)
    return distribute_loader(session, loader, mover, evaluation=evaluation, share=share)


def alone(loader, **how):
    (made,) = on_threads(1, lambda collectives: shared(collectives, loader, **how))
    return made


def order(epoch, length=8, seed=3):
    sampler = ShardedSampler(length, seed=seed)
    sampler.start(epoch)
    return list(sampler)


def flat(batches):
    return [sample for batch in lists(batches) for sample in batch]


def test_each_iteration_is_the_next_epoch():
    loader = alone(numbers(shuffle=True))
    assert type(loader) is EpochLoader
    assert loader.epoch == 0
    assert [flat(loader), flat(loader)] == [order(0), order(1)]
    assert loader.epoch == 2
    loader.epoch = 7
    assert flat(loader) == order(7)
    assert flat(alone(numbers(shuffle=True), seed=None)) == order(0, seed=0)


def test_ranks_share_the_samples_unless_they_are_left_alone():
    parts = on_threads(2, lambda c: lists(shared(c, numbers())))
    assert parts == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert on_threads(2, lambda c: len(shared(c, numbers()))) == [2, 2]
    left = on_threads(2, lambda c: lists(shared(c, numbers(), share=False)))
    assert left == [[[0, 1], [2, 3], [4, 5], [6, 7]]] * 2


def test_an_evaluation_sees_each_sample_once_in_the_datas_order():
    assert lists(alone(numbers(7, shuffle=True), evaluation=True)) == [[0, 1], [2, 3], [4, 5], [6]]
    parts = on_threads(2, lambda c: lists(shared(c, numbers(7), evaluation=True)))
    assert sorted(sample for part in parts for batch in part for sample in batch) == list(range(7))
    assert type(alone(numbers(), evaluation=True)) is EvalLoader
    left = on_threads(2, lambda c: lists(shared(c, numbers(4), evaluation=True, share=False)))
    assert left == [[[0, 1], [2, 3]]] * 2


def test_where_a_forward_needs_all_ranks_it_says_how_to_iterate():
    def run(collectives):
        loader = shared(collectives, numbers(5), evaluation=True, features=["collective_forward"])
        with pytest.raises(DataError, match=r"this strategy's forward needs all ranks: .*loader\.pairs\(\)"):
            iter(loader)
        return loader.repeats, [(batch[0].tolist(), counts) for batch, counts in loader.pairs()]

    (repeats, first), (_, second) = on_threads(2, run)
    assert repeats
    assert len(first) == len(second) == 2
    assert sorted(sample for batch, counts in first + second if counts for sample in batch) == list(range(5))
    assert not all(counts for _, counts in first + second)


def test_pairs_all_count_where_ranks_may_have_unequally_many():
    parts = on_threads(2, lambda c: list(shared(c, numbers(6), evaluation=True).pairs()))
    assert all(counts for part in parts for _, counts in part)
    assert not alone(numbers(6), evaluation=True, features=["collective_forward"]).repeats


@pytest.mark.parametrize("evaluation", [False, True])
def test_batches_go_through_the_mover(evaluation):
    seen = []

    def mover(batches):
        seen.append(batches)
        return batches

    loader = alone(numbers(), evaluation=evaluation, mover=mover)
    assert seen == []
    assert len(lists(loader)) == 4
    assert len(seen) == 1


@pytest.mark.parametrize("evaluation", [False, True])
def test_it_has_the_attributes_of_the_loader_it_was_made_of(evaluation):
    given = numbers(7)
    loader = alone(given, evaluation=evaluation)
    assert (loader.batch_size, loader.dataset, len(loader)) == (2, given.dataset, 4)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = loader.no_such_name
    with pytest.raises(TypeError, match="doesn't know how many batches it has"):
        len(alone(DataLoader(Stream()), evaluation=evaluation))


def test_it_can_be_copied():
    loader = alone(numbers())
    assert copy.copy(loader).batch_size == 2
    with pytest.raises(AttributeError, match=r"^_given$"):
        _ = EpochLoader.__new__(EpochLoader).batch_size
    assert type(pickle.loads(pickle.dumps(EvalLoader.__new__(EvalLoader)))) is EvalLoader
