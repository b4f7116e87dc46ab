"""TrainData: who reads what, for how long, and what people are reported."""

import itertools
import warnings

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from stratagem.data.sampler import ShardedSampler
from stratagem.data.train import TrainData
from stratagem.errors import DataError


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class SizedStream(Stream):
    def __len__(self):
        return 5


class Forgetful(DataLoader):
    def __init__(self, dataset, flavour):
        super().__init__(dataset, batch_size=2)


def batches_of(data, *args):
    return [batch.tolist() for batch in data.epoch(*args)]


def epochs(ranks, world_size, make, count=1, **kwargs):
    """By rank: (TrainData, its epochs)."""

    def run(collectives):
        data = TrainData(make(collectives.rank), collectives=collectives, seed=kwargs.get("seed", 1))
        return data, [batches_of(data, epoch) for epoch in range(count)]

    return ranks(world_size, run)


@pytest.mark.parametrize(("length", "batch_size"), [(12, 3), (13, 3), (37, 4), (5, 8)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_global_batches_are_the_same_at_any_world_size(ranks, numbers, length, batch_size, shuffle):
    globally = {}
    for world_size in (1, 2, 4):
        loader = DataLoader(numbers(length), batch_size=4 * batch_size // world_size, shuffle=shuffle)
        results = epochs(ranks, world_size, lambda rank, loader=loader: loader, count=2)
        globally[world_size] = [
            [
                sorted({sample for own in step for sample in own})
                for step in zip(*(run[epoch] for _, run in results))
            ]
            for epoch in range(2)
        ]
        assert {data.num_batches for data, _ in results} == {len(globally[world_size][0])}
    whole = length // (4 * batch_size)
    for world_size in (2, 4):
        for epoch in range(2):
            assert globally[world_size][epoch][:whole] == globally[1][epoch][:whole]
            assert set().union(*globally[world_size][epoch]) == set(range(length))
    if shuffle:
        assert globally[1][0] != globally[1][1] or length <= 4 * batch_size
    else:
        first = [sample for step in globally[1][0] for sample in step]
        assert first == list(range(length))
        assert globally[1][0] == globally[1][1]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_loader_decides_the_order(ranks, numbers, world_size):
    def turns(loader, count=2):
        results = epochs(ranks, world_size, lambda rank: loader, count)
        return [
            [
                sample
                for step in zip(*(run[epoch] for _, run in results))
                for turn in zip(*step)
                for sample in turn
            ]
            for epoch in range(count)
        ]

    source = numbers(12)
    assert turns(DataLoader(source, batch_size=2)) == [list(range(12))] * 2
    assert turns(DataLoader(source, batch_size=2, sampler=SequentialSampler(source))) == [list(range(12))] * 2
    expected = []
    for epoch in range(2):
        order = ShardedSampler(12, seed=1)
        order.start(epoch)
        expected.append(list(order))
    assert turns(DataLoader(source, batch_size=2, shuffle=True)) == expected
    assert turns(DataLoader(source, batch_size=2, sampler=RandomSampler(source))) == expected
    drawn = turns(DataLoader(source, 2, sampler=RandomSampler(source, replacement=True, num_samples=24)))
    assert [len(epoch) for epoch in drawn] == [24, 24]
    assert drawn[0] != drawn[1]
    alone = ShardedSampler(12, seed=1, num_samples=24, replacement=True)
    assert drawn[0] == list(alone)
    assert len(set(drawn[0][:12])) < 12
    assert turns(DataLoader(source, 2, sampler=RandomSampler(source, num_samples=6)), 1)[0] == expected[0][:6]


def test_drop_last_drops_the_same_samples_at_any_world_size(ranks, numbers):
    sets = []
    for world_size in (1, 2, 4):
        loader = DataLoader(numbers(30), batch_size=8 // world_size, drop_last=True)
        results = epochs(ranks, world_size, lambda rank, loader=loader: loader)
        sets.append({sample for _, (run,) in results for batch in run for sample in batch})
        assert all(len(batch) == 8 // world_size for _, (run,) in results for batch in run)
    assert sets[0] == sets[1] == sets[2]
    assert len(sets[0]) == 24


def test_description_tells_what_is_done(ranks, numbers, alone):
    def described(*args, **kwargs):
        loader = DataLoader(*args, **kwargs)
        return TrainData(loader, collectives=alone, seed=3).description

    source = numbers(1437)
    assert described(source) == "1,437 samples in order"
    assert described(source, shuffle=True) == "1,437 samples, shuffled with seed 3"
    drawn = RandomSampler(source, replacement=True, num_samples=2000)
    assert described(source, sampler=drawn) == (
        "2,000 of 1,437 samples with replacement in each epoch, shuffled with seed 3"
    )
    assert epochs(ranks, 2, lambda rank: DataLoader(source))[0][0].description == (
        "1,437 samples in order over 2 ranks, 1 repeated"
    )
    assert epochs(ranks, 2, lambda rank: DataLoader(source, drop_last=True))[0][0].description == (
        "1,437 samples in order over 2 ranks"
    )
    loader = DataLoader(numbers(8), shuffle=True, batch_size=2)
    data = epochs(ranks, 2, lambda rank: loader)[0][0]
    assert data.description == "8 samples, shuffled with seed 1 over 2 ranks"
    assert data.batch_size == 2


def test_switched_off_the_loader_is_read_as_it_is(ranks, numbers):
    loader = DataLoader(numbers(6), batch_size=2)

    def run(collectives):
        data = TrainData(loader, collectives=collectives, seed=0, distributed_sampler=False)
        return batches_of(data, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranks(2, run) == [[[0, 1], [2, 3], [4, 5]]] * 2


def test_a_custom_sampler_is_never_replaced_and_warned_of_once(ranks, numbers):
    data = numbers(6)
    for loader in (
        DataLoader(data, batch_size=2, sampler=[5, 4, 3, 2]),
        DataLoader(data, batch_sampler=[[5, 4], [3, 2]]),
    ):
        with pytest.warns(
            UserWarning, match="read the same.*trained on several times.*DistributedSampler"
        ) as caught:
            results = epochs(ranks, 3, lambda rank, loader=loader: loader)
        assert len(caught) == 1
        assert [run for _, (run,) in results] == [[[5, 4], [3, 2]]] * 3


def test_a_rank_aware_sampler_is_trusted_and_gets_the_epoch(ranks, numbers):
    data = numbers(8)

    def make(rank):
        return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, rank, seed=4))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = epochs(ranks, 2, make, count=2)
        in_batches = epochs(
            ranks,
            2,
            lambda rank: DataLoader(data, batch_sampler=BatchSampler(make(rank).sampler, 2, False)),
            count=2,
        )
    for (_, own), (_, batched) in zip(results, in_batches):
        assert own == batched
        assert own[0] != own[1]
    assert sorted(sample for _, run in results for batch in run[1] for sample in batch) == list(range(8))


def test_ranks_that_would_read_the_same_stream_are_warned(ranks):
    loader = DataLoader(Stream(6), batch_size=2)
    with pytest.warns(UserWarning, match=r"iterable \(Stream\).*all 2 ranks read the same") as caught:
        results = epochs(ranks, 2, lambda rank: loader)
    assert len(caught) == 1
    assert [run for _, (run,) in results] == [[[0, 1], [2, 3], [4, 5]]] * 2
    assert [data.num_batches for data, _ in results] == [None, None]


def test_of_ranks_that_share_a_copy_of_the_model_only_the_first_warns(ranks):
    def run(collectives):
        # As on the processes 2 and 3 of four, which are the second ones of their copies.
        collectives.local_rank += 2
        TrainData(DataLoader(Stream(6), batch_size=2), collectives=collectives, seed=0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks(2, run)


def test_a_stream_that_knows_its_rank_isn_t(ranks):
    def make(rank):
        stream = Stream(4)
        stream.rank = rank
        return DataLoader(stream, batch_size=2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epochs(ranks, 2, make)


@pytest.mark.filterwarnings("ignore:.*read the same")
@pytest.mark.parametrize("kind", [Stream, SizedStream])
def test_unsized_ranks_stop_together(ranks, kind):
    results = epochs(ranks, 3, lambda rank: DataLoader(kind(4 + 2 * rank), batch_size=2), count=2)
    assert [run for _, run in results] == [[[[0, 1], [2, 3]]] * 2] * 3


@pytest.mark.filterwarnings("ignore:.*read the same")
def test_one_unsized_rank_makes_all_agree(ranks):
    results = epochs(
        ranks, 2, lambda rank: DataLoader(Stream(2), batch_size=2) if rank else [torch.zeros(1)] * 5
    )
    assert [len(run[0]) for _, run in results] == [1, 1]
    assert results[0][0].num_batches is None


@pytest.mark.filterwarnings("ignore:.*read the same")
def test_sized_ranks_that_differ_take_the_fewest_and_are_warned(ranks):
    def run(collectives):
        data = TrainData([torch.zeros(1)] * (3 + collectives.rank), collectives=collectives, seed=0)
        constructing = collectives.calls
        counts = [len(list(data.epoch(0))), len(list(data.epoch(1, 2)))]
        return data.num_batches, counts, collectives.calls - constructing

    with pytest.warns(UserWarning, match="ranks 0 to 2 have 3, 4, 5 batches per epoch: all stop after 3"):
        assert ranks(3, run) == [(3, [3, 1], 0)] * 3


def test_known_lengths_cost_nothing_per_batch(ranks, numbers, alone):
    loader = DataLoader(numbers(12), batch_size=2)

    def run(collectives):
        data = TrainData(loader, collectives=collectives, seed=0)
        return type(data.epoch(0)), collectives.calls

    own_iterator = type(iter(loader))
    assert ranks(2, run) == [(own_iterator, 1)] * 2
    assert type(TrainData(loader, collectives=alone, seed=0).epoch(0)) is own_iterator
    assert len(list(TrainData(DataLoader(Stream(2)), collectives=alone, seed=0).epoch(0))) == 2
    assert alone.calls == 0


@pytest.mark.parametrize("loader", [[], iter([1, 2]), (batch for batch in [1, 2])])
def test_any_iterable_of_batches_will_do(alone, loader):
    if loader == []:
        with pytest.raises(DataError, match=r"has no batch.*drop_last=False"):
            TrainData(loader, collectives=alone, seed=0)
    else:
        data = TrainData(loader, collectives=alone, seed=0)
        assert data.num_batches is None
        assert data.description.endswith("gives them, which can be read only once")
        assert list(data.epoch(0)) == [1, 2]
        with pytest.raises(
            DataError, match=r"^epoch 1 has no batch.*can be read only once: pass an iterable"
        ):
            list(data.epoch(1))


@pytest.mark.filterwarnings("ignore:.*read the same")
@pytest.mark.parametrize("without", [(1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("kind", [Stream, SizedStream, list])
def test_a_rank_without_a_batch_is_named(ranks, kind, without):
    def make(rank):
        count = 0 if rank in without else 4
        return [torch.zeros(1)] * count if kind is list else DataLoader(kind(count), batch_size=2)

    if len(without) == 1:
        who = "on rank 1 of 3"
    elif len(without) == 2:
        who = "on ranks 0, 2 of 3"
    else:
        who = "" if kind is list else "on ranks 0, 1, 2 of 3"
    with pytest.raises(DataError, match=f"^(epoch 0|an epoch of this loader).*{who}.* batch"):
        epochs(ranks, 3, make)


class Promises(list):
    """Says that it has two batches, whatever it has."""

    def __len__(self):
        return 2


@pytest.mark.filterwarnings("ignore:.*read the same")
def test_of_ranks_whose_loaders_promise_batches_the_one_without_is_named(ranks, alone):
    with pytest.raises(DataError, match=r"^epoch 0 on rank 1 of 2 has no batch \(batches as a Promises"):
        epochs(ranks, 2, lambda rank: Promises([torch.zeros(1)] * 2 * (1 - rank)))
    with pytest.raises(DataError, match=r"^epoch 4 has no batch \(batches as a Promises"):
        list(TrainData(Promises(), collectives=alone, seed=0).epoch(4))


def test_an_empty_rest_of_an_epoch_is_no_error(ranks, alone):
    data = TrainData(DataLoader(Stream(4), batch_size=2), collectives=alone, seed=0)
    assert list(data.epoch(0, 2)) == []

    def run(collectives):
        stream = Stream(4)
        stream.rank = collectives.rank
        data = TrainData(DataLoader(stream, batch_size=2), collectives=collectives, seed=0)
        return list(data.epoch(0, 2))

    assert ranks(2, run) == [[], []]
    with pytest.raises(
        DataError, match=r"^epoch 3 has no batch \(batches as a Stream gives them\): give each"
    ):
        list(TrainData(DataLoader(Stream(0)), collectives=alone, seed=0).epoch(3))


def test_too_few_samples_for_a_batch_on_each_rank_are_refused(ranks, numbers):
    loader = DataLoader(numbers(7), batch_size=4, drop_last=True)
    with pytest.raises(DataError, match=r"7 samples.*batch size 4 on each of 2 ranks"):
        epochs(ranks, 2, lambda rank: loader)


def test_a_loader_that_can_t_be_shared_out_is_refused_unless_there_is_one_rank(ranks, numbers, alone):
    loader = Forgetful(numbers(4), "sweet")
    assert batches_of(TrainData(loader, collectives=alone, seed=0), 0) == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match=r"Forgetful.*'flavour'.*use_distributed_sampler=False"):
        epochs(ranks, 2, lambda rank: loader)


def test_persistent_workers_follow_the_epochs(numbers, alone):
    loader = DataLoader(numbers(8), batch_size=2, num_workers=2, persistent_workers=True)
    plain = DataLoader(numbers(8), batch_size=2)
    data, expected = (TrainData(one, collectives=alone, seed=2) for one in (loader, plain))
    for epoch, done in itertools.product((0, 1), (0, 3, 1)):
        assert batches_of(data, epoch, done) == batches_of(expected, epoch)[done:]
    # Left on the way, as with a limit on batches.
    next(data.epoch(4))
    assert batches_of(data, 5) == batches_of(expected, 5)


def test_a_length_that_workers_may_change_is_unknown(alone):
    assert TrainData(DataLoader(SizedStream(5), num_workers=0), collectives=alone, seed=0).num_batches == 5
    assert TrainData(DataLoader(SizedStream(5), num_workers=2), collectives=alone, seed=0).num_batches is None


def test_random_sampler_with_its_own_generator_is_custom(numbers, alone):
    data = numbers(6)
    loader = DataLoader(data, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(3)))
    assert TrainData(loader, collectives=alone, seed=0).description == "batches as a RandomSampler gives them"
