"""Loaders that are left as they are go on exactly, whatever random numbers they draw from."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from stratagem.data.train import TrainData


def samples_in_order(parts):
    """Global order of what ranks read: their batches' samples in turn."""
    flat = [[sample for batch in part for sample in batch] for part in parts]
    return [sample for turn in itertools.zip_longest(*flat) for sample in turn if sample is not None]


class Lazy(Sampler):
    """Draws from every kind of generator there is; most when its first index is asked for."""

    def __init__(self, length, own):
        self.length = length
        self.own, self.python, self.array = own, random.Random(3), np.random.default_rng(4)

    def __len__(self):
        return self.length

    def __iter__(self):
        order = torch.randperm(self.length).tolist()
        random.shuffle(order)
        np.random.shuffle(order)
        self.python.shuffle(order)
        self.array.shuffle(order)
        order = [order[i] for i in torch.randperm(self.length, generator=self.own).tolist()]
        yield from order


class Eager(Lazy):
    def __iter__(self):
        return iter(list(super().__iter__()))


class Batches(Lazy):
    def __iter__(self):
        order = list(super().__iter__())
        yield from [order[i : i + 3] for i in range(0, self.length, 3)]

    def __len__(self):
        return -(-self.length // 3)


class Shuffled(IterableDataset):
    def __init__(self, length, own):
        self.sampler = Lazy(length, own)
        self.own = own

    def __iter__(self):
        return iter(torch.randperm(20, generator=self.own).tolist())


class Plain:
    """Neither a DataLoader nor sized."""

    def __init__(self, own):
        self.own = own

    def __iter__(self):
        for index in torch.randperm(20).tolist():
            yield torch.tensor([index])


class Generating(DataLoader):
    """Its iterator is made when the first batch is asked for."""

    def __iter__(self):
        yield from super().__iter__()


def generator():
    return torch.Generator().manual_seed(8)


LOADERS = {
    "lazy": lambda data, **kw: DataLoader(data, batch_size=3, sampler=Lazy(20, generator()), **kw),
    "eager": lambda data, **kw: DataLoader(data, batch_size=3, sampler=Eager(20, generator()), **kw),
    "batches": lambda data, **kw: DataLoader(data, batch_sampler=Batches(20, generator()), **kw),
    "single": lambda data, **kw: DataLoader(data, batch_size=None, sampler=Lazy(20, generator()), **kw),
    "replacing": lambda data, **kw: DataLoader(
        data, batch_size=3, sampler=RandomSampler(data, replacement=True, num_samples=20), **kw
    ),
    "loader's generator": lambda data, **kw: DataLoader(
        data, batch_size=3, sampler=RandomSampler(data, replacement=True), generator=generator(), **kw
    ),
    "stream": lambda data, **kw: DataLoader(Shuffled(20, generator()), batch_size=3, **kw),
    "generating": lambda data, **kw: Generating(data, batch_size=3, sampler=Lazy(20, generator()), **kw),
    "plain": lambda data, **kw: Plain(generator()),
}


def train(data, epochs, first=0, done=0, state=None, resume=None, stop=None):
    """Read epochs while drawing from the global generator as a training step does.

    `stop` = (epoch, batches): return the position and the global generators there, too.
    """
    trained = []
    for epoch in range(first, epochs):
        if resume is not None and done == 0:
            resume()
            resume = None
        iterator = data.epoch(epoch, done, state)
        if resume is not None:
            resume()
            resume = None
        count, done, state = done, 0, None
        if stop == (epoch, count):
            return (
                trained,
                data.state(epoch, count),
                torch.get_rng_state(),
                np.random.get_state(),
                random.getstate(),
            )
        for batch in iterator:
            trained.append((batch.tolist(), torch.rand(1).item()))
            count += 1
            if stop == (epoch, count):
                return (
                    trained,
                    data.state(epoch, count),
                    torch.get_rng_state(),
                    np.random.get_state(),
                    random.getstate(),
                )
        if stop == (epoch + 1, 0):
            return (
                trained,
                data.state(epoch + 1, 0),
                torch.get_rng_state(),
                np.random.get_state(),
                random.getstate(),
            )
    return trained


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def make_data(name, numbers, alone, **kwargs):
    loader = LOADERS[name](numbers(20), **kwargs)
    return TrainData(loader, collectives=alone, seed=0, distributed_sampler=False)


@pytest.mark.parametrize("stop", [(0, 2), (1, 0), (1, 3)])
@pytest.mark.parametrize(("name", "workers"), [*itertools.product(LOADERS, [0]), ("lazy", 2), ("batches", 2)])
def test_any_other_loader_goes_on_exactly(numbers, alone, name, workers, stop):
    kwargs = {"num_workers": workers, "persistent_workers": True} if workers else {}
    seed_all(1)
    uninterrupted = train(make_data(name, numbers, alone, **kwargs), 3)

    seed_all(1)
    before, state, in_torch, in_numpy, in_python = train(
        make_data(name, numbers, alone, **kwargs), 3, stop=stop
    )
    assert before == uninterrupted[: len(before)]

    seed_all(77)
    data = make_data(name, numbers, alone, **kwargs)
    assert data.done_after_resume(state) == stop[1]

    def resume():
        torch.set_rng_state(in_torch)
        np.random.set_state(in_numpy)
        random.setstate(in_python)

    after = train(data, 3, *stop, state=state, resume=resume)
    assert before + after == uninterrupted


def test_a_custom_sampler_s_skipped_samples_aren_t_loaded(numbers, alone):
    source = numbers(20)
    loader = DataLoader(source, batch_size=4, sampler=range(20))
    data, batch_sampler = TrainData(loader, collectives=alone, seed=0), loader.batch_sampler
    list(data.epoch(0, 3))
    assert source.reads == list(range(12, 20))
    # The loader has its own samplers back.
    assert loader.batch_sampler is batch_sampler
    assert [batch.tolist()[0] for batch in data.epoch(1)] == [0, 4, 8, 12, 16]


def test_a_distributed_sampler_goes_on_at_another_world_size(ranks, numbers):
    def data_at(world_size, batch_size):
        def make(collectives):
            source = numbers(24)
            sampler = DistributedSampler(source, world_size, collectives.rank)
            return TrainData(DataLoader(source, batch_size, sampler=sampler), collectives=collectives, seed=0)

        return ranks(world_size, make)

    whole = samples_in_order([[batch.tolist() for batch in data_at(1, 4)[0].epoch(2)]])
    state = data_at(2, 3)[0].state(2, 2)
    (alone,) = data_at(1, 4)
    done = alone.done_after_resume(state)
    assert done == 3
    assert samples_in_order([[batch.tolist() for batch in alone.epoch(2, done, state)]]) == whole[12:]


def test_what_can_t_be_converted_is_reported(ranks, alone):
    state = {**TrainData([1, 2, 3], collectives=alone, seed=0).state(0, 2), "world_size": 4}
    with pytest.warns(
        UserWarning, match="written by 4 ranks, now there are 1, and the size of a batch isn't known"
    ):
        assert TrainData([1, 2, 3], collectives=alone, seed=0).done_after_resume(state) == 2


def test_another_way_of_reading_is_reported(numbers, alone):
    loader = DataLoader(numbers(20), batch_size=2)
    state = TrainData(loader, collectives=alone, seed=0).state(0, 4)
    other = TrainData(loader, collectives=alone, seed=0, distributed_sampler=False)
    with pytest.warns(UserWarning, match="were sharded and now they are replayed"):
        assert other.done_after_resume(state) == 4
    assert len(list(other.epoch(0, 4, state))) == 6
