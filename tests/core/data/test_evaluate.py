"""EvalData: every sample exactly once, equally many batches where that is needed, predictions in order."""

import itertools
import warnings
from functools import partial

import pytest
import torch
from stratagem_trainer.loops.predictions import in_order, merge_predictions
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from stratagem.data.evaluate import EvalData
from stratagem.data.train import TrainData
from stratagem.errors import DataError

COMBINATIONS = list(itertools.product([1, 3, 8, 13], [1, 2, 3, 4], [1, 3, 8]))


class Stream(IterableDataset):
    def __init__(self, length, rank):
        self.length, self.rank = length, rank

    def __iter__(self):
        return iter(range(self.length))


class Twelve(DataLoader):
    def __init__(self, dataset, flavour):
        super().__init__(dataset, batch_size=12, shuffle=True)


def evaluate(ranks, world_size, make, **kwargs):
    """By rank: (EvalData, its pairs as lists)."""

    def run(collectives):
        data = EvalData(make(collectives.rank), collectives=collectives, **kwargs)
        return data, [(batch.tolist(), counted) for batch, counted in data]

    return ranks(world_size, run)


@pytest.mark.parametrize(("length", "world_size", "batch_size"), COMBINATIONS)
@pytest.mark.parametrize("equal", [False, True])
def test_each_sample_counts_once_and_predictions_come_in_order(
    ranks, numbers, length, world_size, batch_size, equal
):
    loader = DataLoader(numbers(length), batch_size=batch_size)
    results = evaluate(ranks, world_size, lambda rank: loader, equal_batches=equal)
    counted = [[batch for batch, counts in pairs if counts] for _, pairs in results]
    samples = [sample for part in counted for batch in part for sample in batch]
    assert sorted(samples) == list(range(length))
    assert [len(pairs) for _, pairs in results] == [data.num_batches for data, _ in results]
    if equal:
        assert len({len(pairs) for _, pairs in results}) == 1
        # A batch that doesn't count is one that can be run.
        assert all(batch for _, pairs in results for batch, _ in pairs)
    else:
        assert all(counts for _, pairs in results for _, counts in pairs)
    for (data, _), part in zip(results, counted):
        local = [sample for batch in part for sample in batch]
        assert data.order(len(local)) == local

    predictions = [[torch.tensor(batch) * 2 for batch in part] for part in counted]
    alone = [list(range(length))[i : i + batch_size] for i in range(0, length, batch_size)]
    assert [(batch // 2).tolist() for batch in in_order(results[0][0], predictions, warns=True)] == alone
    ordered = [sample for batch in merge_predictions(predictions) for sample in (batch // 2).tolist()]
    assert ordered == list(range(length))


def test_predictions_of_a_limited_number_of_batches_are_merged_too(ranks, numbers):
    loader = DataLoader(numbers(20), batch_size=3)
    results = evaluate(ranks, 2, lambda rank: loader)
    predictions = [[torch.tensor(batch) for batch, _ in pairs[:2]] for _, pairs in results]
    merged = in_order(results[0][0], predictions, warns=True)
    assert [batch.tolist() for batch in merged] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize(("batch_size", "sizes"), [(3, [[3, 1], [3]]), (None, [[1] * 4, [1] * 3])])
def test_the_samples_in_each_batch_are_known_of_all_ranks(ranks, numbers, batch_size, sizes):
    loader = DataLoader(numbers(7), batch_size=batch_size)
    results = evaluate(ranks, 2, lambda rank: loader)
    parts = [[None] * len(pairs) for _, pairs in results]
    assert [data.sizes(parts) for data, _ in results] == [sizes] * 2
    assert results[0][0].sizes([part[:1] for part in parts]) == [own[:1] for own in sizes]
    left = evaluate(ranks, 1, lambda rank: loader, distributed_sampler=False)
    assert left[0][0].sizes(parts) is None


def test_shuffle_and_drop_last_don_t_matter(ranks, numbers):
    for world_size in (1, 2):
        loader = DataLoader(numbers(7), batch_size=2, shuffle=True, drop_last=True)
        results = evaluate(ranks, world_size, lambda rank, loader=loader: loader)
        assert sorted(s for _, pairs in results for batch, _ in pairs for s in batch) == list(range(7))
        assert results[0][1][0][0] == [0, world_size]
    assert results[0][0].description == "7 samples in order over 2 ranks, each once"
    assert results[0][0].batch_size == 2


def test_a_loader_that_reads_in_order_already_is_used_itself(numbers, alone):
    loader = DataLoader(numbers(7), batch_size=2, num_workers=1, persistent_workers=True)
    data = EvalData(loader, collectives=alone)
    assert [batch.tolist() for batch, _ in data] == [[0, 1], [2, 3], [4, 5], [6]]
    assert loader._iterator is not None
    assert data.description == "7 samples in order, each once"


def test_one_rank_needs_no_loader_to_be_built_again(numbers, alone):
    data = EvalData(Twelve(numbers(5), "sweet"), collectives=alone)
    assert sorted(next(iter(data))[0].tolist()) == [0, 1, 2, 3, 4]
    assert data.description == "batches as a RandomSampler gives them"


def test_two_ranks_refuse_a_loader_that_cannot_be_built_again(ranks, numbers):
    with pytest.raises(DataError, match="Twelve"):
        evaluate(ranks, 2, lambda rank: Twelve(numbers(5), "sweet"))


@pytest.mark.parametrize("equal", [False, True])
def test_custom_samplers_are_left_and_warned_of(ranks, numbers, equal):
    source = numbers(4)
    loader = DataLoader(source, batch_sampler=BatchSampler(SequentialSampler(source), 2, False))
    with pytest.warns(UserWarning, match="metrics and predictions count each sample several times") as caught:
        results = evaluate(ranks, 2, lambda rank: loader, equal_batches=equal)
    assert len(caught) == 1
    assert [pairs for _, pairs in results] == [[([0, 1], True), ([2, 3], True)]] * 2
    data = results[0][0]
    assert data.order(2) is None
    assert in_order(data, [["a", "b"], ["c"]], warns=True) == ["a", "b", "c"]
    assert data.batch_size == 2


def test_predictions_that_cannot_be_put_in_order_are_warned_of_once(ranks, numbers):
    def run(collectives):
        data = EvalData(DataLoader(numbers(4), batch_size=2), collectives=collectives)
        return in_order(data, [[0.5], [0.25]], warns=collectives.rank == 0)

    with pytest.warns(UserWarning, match="can't be split into samples") as caught:
        assert ranks(2, run) == [[0.5, 0.25]] * 2
    assert len(caught) == 1


def test_switched_off_or_distributed_nothing_is_warned(ranks, numbers):
    source = numbers(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = evaluate(ranks, 2, lambda rank: DataLoader(source), distributed_sampler=False)
        assert [len(pairs) for _, pairs in results] == [4, 4]
        evaluate(ranks, 2, lambda rank: DataLoader(source, sampler=DistributedSampler(source, 2, rank)))


@pytest.mark.parametrize("lengths", [(4, 0, 1), (0, 3, 5), (2, 2, 2)])
@pytest.mark.parametrize("sized", [True, False])
def test_ranks_with_unequal_loaders_run_equally_many_batches(ranks, lengths, sized):
    def make(rank):
        stream = Stream(lengths[rank], rank)
        if sized:
            return [torch.tensor([i]) for i in range(lengths[rank])]
        return DataLoader(stream, batch_size=1)

    results = evaluate(ranks, 3, make, equal_batches=True, distributed_sampler=False)
    for (data, pairs), length in zip(results, lengths):
        assert len(pairs) == max(lengths)
        assert [batch for batch, counts in pairs if counts] == [[i] for i in range(length)]
        assert data.num_batches == (max(lengths) if sized else None)
        assert data.repeats is (not sized or len(set(lengths)) > 1)


@pytest.mark.parametrize("equal", [False, True])
def test_a_rank_without_samples_is_fine_and_no_samples_at_all_are_refused(ranks, numbers, equal):
    def make(lengths, kind):
        if kind == "list":
            return lambda rank: [torch.tensor([i]) for i in range(lengths[rank])]
        return lambda rank: DataLoader(Stream(lengths[rank], rank), batch_size=1)

    for kind in ("list", "stream"):
        results = evaluate(ranks, 3, make((2, 0, 1), kind), equal_batches=equal, distributed_sampler=False)
        counted = [[batch for batch, counts in pairs if counts] for _, pairs in results]
        assert counted == [[[0], [1]], [], [[0]]]
        with pytest.raises(DataError, match=r"this evaluation has no batch .*give each rank at least one"):
            evaluate(ranks, 3, make((0, 0, 0), kind), equal_batches=equal, distributed_sampler=False)
    results = evaluate(ranks, 3, lambda rank: DataLoader(numbers(2)), equal_batches=equal)
    assert [[batch for batch, counts in pairs if counts] for _, pairs in results] == [[[0]], [[1]], []]
    with pytest.raises(DataError, match="0 samples in order over 3 ranks"):
        evaluate(ranks, 3, lambda rank: DataLoader(numbers(0)), equal_batches=equal)


def test_what_can_be_read_only_once_is_refused_the_second_time(alone):
    class Sized:
        def __init__(self):
            self.batches = iter([1, 2])

        def __len__(self):
            return 2

        def __iter__(self):
            return self.batches

    for loader, match in ((iter([1, 2]), "list_iterator can be read only once"), (Sized(), "has no batch")):
        data = EvalData(loader, collectives=alone)
        assert list(data) == [(1, True), (2, True)]
        with pytest.raises(DataError, match=match):
            list(data)


@pytest.mark.parametrize(
    ("loaders", "said"),
    [
        (
            [DataLoader([1]), DataLoader([2])],
            "a list of 2 loaders was given where one loader belongs: pass one DataLoader",
        ),
        ((DataLoader([1]),), "a tuple of 1 loaders"),
        ([[torch.ones(1)], [DataLoader([1])]], "a list of 2 loaders"),
        ([iter([1]), iter([2])], "a list of 2 loaders"),
        ({"a": DataLoader([1])}, "a dict of loaders was given where one loader belongs"),
        ({"x": torch.ones(2)}, "a dict isn't a loader, since its keys.*pass a list of batches"),
        (type("Combined", (), {"mode": "min_size", "iterables": []})(), "a Combined was given where one"),
    ],
)
def test_several_loaders_are_refused(alone, loaders, said):
    for make in (EvalData, partial(TrainData, seed=0)):
        with pytest.raises(DataError, match=said):
            make(loaders, collectives=alone)


def test_without_equal_batches_nothing_is_sent(ranks, numbers):
    def run(collectives):
        list(EvalData(DataLoader(numbers(5)), collectives=collectives))
        return collectives.calls

    assert ranks(2, run) == [0, 0]


def test_a_single_rank_compares_nothing(numbers, alone):
    data = EvalData([1, 2], collectives=alone, equal_batches=True)
    constructing = alone.calls
    assert list(data) == [(1, True), (2, True)]
    assert (alone.calls - constructing, data.repeats, data.num_batches) == (0, False, 2)
    shared = EvalData(DataLoader(numbers(3)), collectives=alone, equal_batches=True)
    assert (len(list(shared)), shared.repeats, alone.calls) == (3, False, constructing)


def test_a_second_evaluation_reads_the_same(ranks, numbers):
    def run(collectives):
        data = EvalData(DataLoader(numbers(5), batch_size=2), collectives=collectives, equal_batches=True)
        return [[(batch.tolist(), counted) for batch, counted in data] for _ in range(2)]

    for first, second in ranks(3, run):
        assert first == second
