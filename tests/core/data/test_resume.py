"""A resumed run goes on with the very next sample."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from stratagem.data.sampler import ShardedSampler
from stratagem.data.train import TrainData


def sharded(ranks, world_size, loader, seed=1):
    """Every rank's TrainData, for use without threads: nothing more is sent."""
    return ranks(world_size, lambda collectives: TrainData(loader, collectives=collectives, seed=seed))


def samples_in_order(parts):
    """Global order of what ranks read: their batches' samples in turn."""
    flat = [[sample for batch in part for sample in batch] for part in parts]
    return [sample for turn in itertools.zip_longest(*flat) for sample in turn if sample is not None]


def order_of(length, seed, epoch):
    sampler = ShardedSampler(length, seed=seed)
    sampler.start(epoch)
    return list(sampler)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("length", "before", "after", "done"),
    [
        (37, (1, 4), (1, 4), 3),
        (37, (2, 4), (2, 4), 2),
        (37, (2, 4), (1, 8), 3),
        (37, (1, 8), (2, 4), 3),
        (37, (2, 3), (1, 4), 2),
        (40, (1, 6), (4, 2), 5),
        (37, (2, 4), (2, 5), 4),
        (37, (2, 4), (1, 3), 5),
        (37, (2, 4), (1, 3), 0),
    ],
)
def test_map_style_data_at_any_world_size_and_batch_size(
    ranks, numbers, workers, length, before, after, done
):
    (old_world, old_batch), (new_world, new_batch) = before, after
    old = sharded(ranks, old_world, DataLoader(numbers(length), batch_size=old_batch))
    read = [[batch.tolist() for batch in itertools.islice(data.epoch(5), done)] for data in old]
    state = json.loads(json.dumps(old[0].state(5, done)))
    consumed = min(length, done * old_world * old_batch)
    assert samples_in_order(read)[:consumed] == order_of(length, 1, 5)[:consumed]

    loader = DataLoader(numbers(length), batch_size=new_batch, num_workers=workers)
    new = sharded(ranks, new_world, loader, seed=99)
    resumed_at = {data.done_after_resume(state) for data in new}
    assert len(resumed_at) == 1
    (new_done,) = resumed_at
    assert new_done in (consumed // (new_world * new_batch), consumed // (new_world * new_batch) + 1)
    rest = [[batch.tolist() for batch in data.epoch(5, new_done, state)] for data in new]
    assert samples_in_order(rest)[: length - consumed] == order_of(length, 1, 5)[consumed:]
    assert {len(part) for part in rest} == {new[0].num_batches - new_done}

    # And on into the next epoch, with the order that the first run would have had.
    first = samples_in_order([[next(data.epoch(6)).tolist()] for data in new])
    assert first == order_of(length, 1, 6)[: len(first)]


def test_a_resumed_run_can_be_resumed_again_in_the_same_epoch(ranks, numbers):
    (first,) = sharded(ranks, 1, DataLoader(numbers(50), batch_size=7))
    state = first.state(0, 3)
    second = sharded(ranks, 2, DataLoader(numbers(50), batch_size=4))
    done = second[0].done_after_resume(state)
    for data in second:
        iterator = data.epoch(0, done, state)
        next(iterator)
    again = second[1].state(0, done + 1)
    assert again["samples"] == 21 + 8
    (third,) = sharded(ranks, 1, DataLoader(numbers(50), batch_size=5))
    rest = [batch.tolist() for batch in third.epoch(0, third.done_after_resume(again), again)]
    assert samples_in_order([rest]) == order_of(50, 1, 0)[29:]


def test_nothing_is_loaded_that_was_seen(ranks, numbers):
    source = numbers(20)
    (data,) = sharded(ranks, 1, DataLoader(source, batch_size=2))
    list(data.epoch(0, 7))
    assert source.reads == order_of(20, 1, 0)[14:]


def test_a_dataset_of_another_length_begins_its_epoch_anew(ranks, numbers):
    (old,) = sharded(ranks, 1, DataLoader(numbers(20), batch_size=2))
    (new,) = sharded(ranks, 1, DataLoader(numbers(22), batch_size=2))
    state = old.state(3, 4)
    with pytest.warns(UserWarning, match="over 20 samples, and now there are 22: this epoch begins anew"):
        assert new.done_after_resume(state) == 0
    assert len(list(new.epoch(3, 0, state))) == 11


def test_an_epoch_in_the_middle_leaves_the_global_generators_alone(ranks, numbers):
    for loader in (DataLoader(numbers(8)), DataLoader(numbers(8), sampler=[1, 2, 3])):
        (data,) = sharded(ranks, 1, loader)
        list(data.epoch(0))
        state = data.state(0, 2)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        data.epoch(0, 2, state)
        assert torch.equal(torch.get_rng_state(), before)


# Loaders that are left as they are ---------------------------------------------------------------------


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


def test_what_can_t_be_converted_is_told(ranks, alone):
    state = {**TrainData([1, 2, 3], collectives=alone, seed=0).state(0, 2), "world_size": 4}
    with pytest.warns(
        UserWarning, match="written by 4 ranks, now there are 1, and the size of a batch isn't known"
    ):
        assert TrainData([1, 2, 3], collectives=alone, seed=0).done_after_resume(state) == 2


def test_another_way_of_reading_is_told(numbers, alone):
    loader = DataLoader(numbers(20), batch_size=2)
    state = TrainData(loader, collectives=alone, seed=0).state(0, 4)
    other = TrainData(loader, collectives=alone, seed=0, distributed_sampler=False)
    with pytest.warns(UserWarning, match="were sharded and now they are replayed"):
        assert other.done_after_resume(state) == 4
    assert len(list(other.epoch(0, 4, state))) == 6


# Loaders that keep their own state ------------------------------------------------------------------------


class Tape:
    """A stateful loader of numbers that never end; its position is all it knows."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        for _ in range(5):
            self.position += 1
            yield self.position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_stateful_loader_is_asked_for_its_own_position(alone):
    first = TrainData(Tape(), collectives=alone, seed=0)
    list(first.epoch(0))
    assert list(itertools.islice(first.epoch(1), 2)) == [6, 7]
    state = first.state(1, 2)
    second = TrainData(Tape(), collectives=alone, seed=0)
    assert second.done_after_resume(state) == 2
    assert next(second.epoch(1, 2, state)) == 8


class SizedTape(Tape):
    def __len__(self):
        return 5


def test_a_stateful_loader_at_its_epoch_s_end_has_nothing_left_and_goes_on_with_the_next(alone):
    first = TrainData(SizedTape(), collectives=alone, seed=0)
    list(first.epoch(0))
    second = TrainData(SizedTape(), collectives=alone, seed=0)
    assert list(second.epoch(0, 5, first.state(0, 5))) == []
    assert list(second.epoch(1)) == [6, 7, 8, 9, 10]


def test_a_stateful_loader_that_was_never_read_begins_at_its_beginning(alone):
    state = TrainData(Tape(), collectives=alone, seed=0).state(0, 0)
    assert list(TrainData(Tape(), collectives=alone, seed=0).epoch(0, 0, state)) == [1, 2, 3, 4, 5]


class Counting(IterableDataset):
    """Numbers from 1 to 10, with a state that torchdata keeps."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 10:
            self.position += 1
            yield self.position
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


# torchdata 0.11 calls what torch 2.13 warns of.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_s_loader_over_a_stream(alone, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        return TrainData(
            stateful.StatefulDataLoader(Counting(), batch_size=1, num_workers=workers),
            collectives=alone,
            seed=0,
        )

    first, second = make(), make()
    whole = [batch.tolist() for batch in make().epoch(0)]
    assert [batch.tolist() for batch in itertools.islice(first.epoch(0), 4)] == whole[:4]
    state = first.state(0, 4)
    assert [batch.tolist() for batch in second.epoch(0, second.done_after_resume(state), state)] == whole[4:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata_s_loader_over_map_style_data_is_shared_out(numbers, alone):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(numbers(20), batch_size=3, shuffle=True, snapshot_every_n_steps=2)
    data = TrainData(loader, collectives=alone, seed=1)
    assert data.description == "20 samples, shuffled with seed 1"
    assert samples_in_order([[batch.tolist() for batch in data.epoch(4, 2)]]) == order_of(20, 1, 4)[6:]


def test_a_stateful_loader_at_another_world_size_is_read_from_its_beginning(alone):
    state = {**TrainData(Tape(), collectives=alone, seed=0).state(0, 2), "world_size": 2}
    assert list(TrainData(Tape(), collectives=alone, seed=0).epoch(0, 2, state)) == [3, 4, 5]
