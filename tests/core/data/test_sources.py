"""Where a loader's epoch begins: what every source does, and those that ask a loader for its own state.

test_sources_replayed.py has loaders that are left as they are, and test_sharded.py those that are shared out.
"""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stratagem.data.sampler import ShardedSampler
from stratagem.data.sources import ReplayedSource, Source, StatefulSource
from stratagem.data.train import TrainData


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


class EndingTape(SizedTape):
    """Of a position at its end it says once that nothing is left, as MosaicML's StreamingDataLoader does."""

    def __iter__(self):
        self.was_loaded, was_loaded = False, getattr(self, "was_loaded", False)
        return iter(()) if was_loaded and self.position % 5 == 0 else super().__iter__()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.was_loaded = True


@pytest.mark.parametrize(("epoch", "done"), [(0, 5), (1, 0)])
def test_one_that_says_it_is_at_its_end_goes_on_with_the_next_epoch(alone, epoch, done):
    first = TrainData(EndingTape(), collectives=alone, seed=0)
    list(first.epoch(0))
    second = TrainData(EndingTape(), collectives=alone, seed=0)
    left = list(second.epoch(epoch, done, first.state(epoch, done)))
    assert [*left, *(list(second.epoch(1)) if epoch == 0 else [])] == [6, 7, 8, 9, 10]


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
    order = ShardedSampler(20, seed=1)
    order.start(4)
    assert [sample for batch in data.epoch(4, 2) for sample in batch.tolist()] == list(order)[6:]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_stateful_loader_at_another_world_size_is_read_from_its_beginning(ranks, before, after):
    def made(world_size):
        return ranks(world_size, lambda collectives: StatefulSource(Tape(), collectives, 0))

    first, *_ = made(before)
    list(itertools.islice(first.open(0, 0, None), 4))
    state = first.state(0, 2)
    assert [list(each.open(0, 2, state)) for each in made(after)] == [[3, 4, 5]] * after


# Of every source ---------------------------------------------------------------------------------------


class EpochSampler:
    """A sampler that gets the epoch, and has its own random order."""

    def __init__(self, length):
        self.length, self.epochs = length, []
        self.own = torch.Generator().manual_seed(3)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(torch.randperm(self.length, generator=self.own).tolist())


def numbers_of(batches):
    return [number for batch in batches for number in batch.tolist()]


def test_each_part_gets_the_epoch_once(numbers, alone):
    sampler = EpochSampler(4)
    loader = DataLoader(numbers(4), 2, sampler=sampler)
    loader.epochs = []
    loader.set_epoch = loader.epochs.append
    source = ReplayedSource(loader, alone, 0)
    source.open(7, 0, None)
    source.open(8, 1, None)
    # The sampler is in the loader's batch sampler, too.
    assert (sampler.epochs, loader.epochs) == ([7, 8], [7, 8])


def test_a_state_is_of_the_epoch_that_was_begun_or_of_the_next(numbers, alone):
    source = ReplayedSource(DataLoader(numbers(6), 2, sampler=EpochSampler(6)), alone, 0)
    assert (source.state(0, 0)["warm"], source.state(0, 0)["samples"]) == (False, 0)
    whole = numbers_of(source.open(0, 0, None))
    begun, following = source.state(0, 2), source.state(1, 0)
    assert (begun["done"], begun["samples"], begun["warm"], following["warm"]) == (2, 4, False, True)
    again = ReplayedSource(DataLoader(numbers(6), 2, sampler=EpochSampler(6)), alone, 0)
    torch.randperm(6, generator=again.loader.sampler.own)
    assert numbers_of(again.open(0, 2, begun)) == whole[4:]
    last = ReplayedSource(DataLoader(numbers(6), 2, sampler=EpochSampler(6)), alone, 0)
    assert numbers_of(last.open(1, 0, following)) == numbers_of(source.open(1, 0, None))
    assert source.state(1, 0)["warm"] is True


def test_samples_are_those_of_all_ranks_together(ranks, numbers):
    def run(collectives):
        return ReplayedSource(DataLoader(numbers(6), 2, sampler=EpochSampler(6)), collectives, 0).state(0, 3)[
            "samples"
        ]

    assert ranks(2, run) == [12, 12]


def test_how_an_epoch_begins_has_to_be_defined(alone):
    for method in ("_open", "state"):
        with pytest.raises(TypeError, match=f"abstract.*{method}"):
            type("Lacking", (ReplayedSource,), {method: getattr(Source, method)})([1], alone)


def test_generators_of_another_number_of_ranks_are_not_taken_up(numbers, alone):
    def make():
        return ReplayedSource(DataLoader(numbers(6), 2, sampler=EpochSampler(6)), alone, 0)

    source = make()
    list(source.open(0, 0, None))
    later = {**source.state(1, 0), "world_size": 2}
    assert numbers_of(make().open(1, 0, later)) == numbers_of(make().open(1, 0, None))


def test_the_global_generators_are_those_of_the_state_in_mid_epoch_alone(alone):
    class Random(list):
        def __iter__(self):
            return iter(torch.rand(3).tolist())

    def read(done, state=None):
        torch.manual_seed(9)
        return list(ReplayedSource(Random(), alone, 0).open(0, done, state))

    torch.manual_seed(4)
    source = ReplayedSource(Random(), alone, 0)
    whole = list(source.open(0, 0, None))
    state = source.state(0, 1)
    assert read(1, state) == whole[1:]
    # A run that resumes at an epoch's beginning has restored them.
    assert read(0, state) == read(0)
    torch.manual_seed(9)
    before = torch.get_rng_state()
    ReplayedSource(Random(), alone, 0).open(0, 1, state)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({}, 3),
        ({"world_size": 4, "samples": 48}, 24),
        ({"batch_size": 6, "samples": 18}, 9),
        ({"batch_size": 3, "samples": 9}, 4),
    ],
)
def test_a_position_of_other_batches_is_counted_in_samples(numbers, alone, saved, expected):
    source = ReplayedSource(DataLoader(numbers(60), 2, sampler=EpochSampler(60)), alone, 0)
    assert source.done_after_resume({**source.state(0, 3), **saved}) == expected


def test_a_position_of_other_batches_is_counted_in_samples_of_all_ranks(ranks, numbers):
    def count(collectives):
        source = ReplayedSource(DataLoader(numbers(60), 4, sampler=EpochSampler(60)), collectives, 0)
        return source.done_after_resume({**source.state(0, 3), "batch_size": 6, "samples": 34})

    # 8 samples are in a batch of each of two ranks.
    assert ranks(2, count) == [4, 4]


def test_a_position_with_unknown_samples_is_reported_and_used_unchanged(numbers, alone):
    source = ReplayedSource(DataLoader(numbers(60), 2, sampler=EpochSampler(60)), alone, 0)
    with pytest.warns(
        UserWarning, match="written by 3 ranks, now there are 1, and the size of a batch isn't known"
    ):
        assert source.done_after_resume({**source.state(0, 3), "world_size": 3, "samples": None}) == 3
    assert ReplayedSource([1, 2, 3], alone, 0).state(0, 2)["samples"] is None


def test_sources_are_described(ranks, numbers, alone):
    sampled = DataLoader(numbers(4), sampler=EpochSampler(4))
    assert ReplayedSource(sampled, alone, 0).description == "batches as a EpochSampler gives them"
    assert ReplayedSource(DataLoader(Counting()), alone, 0).description == "batches as a Counting gives them"
    assert StatefulSource(Tape(), alone, 0).description == "batches as a stateful Tape gives them"
    reported = ranks(
        2, lambda c: (ReplayedSource([1], c, 0).description, StatefulSource(Tape(), c, 0).description)
    )
    assert reported[1] == (
        "batches as a list gives them on each of 2 ranks",
        "batches as a stateful Tape gives them on each of 2 ranks",
    )


class Persistent(list):
    """Counts how often it is iterated, as a loader whose workers stay is."""

    persistent_workers = True
    iterated = 0

    def __iter__(self):
        self.iterated += 1
        torch.rand(())
        return super().__iter__()


@pytest.mark.parametrize(
    ("was_warm", "persists", "times"), [(True, True, 2), (False, True, 1), (True, False, 1)]
)
def test_workers_that_stay_are_started_where_the_uninterrupted_run_had_them(alone, was_warm, persists, times):
    loader = Persistent([1, 2])
    loader.persistent_workers = persists
    source = ReplayedSource(loader, alone, 0)
    state = {**source.state(3, 0), "warm": was_warm}
    torch.manual_seed(2)
    expected = torch.rand(2)[1]
    torch.manual_seed(2)
    source.open(3, 0, state)
    assert loader.iterated == times
    # Only the epoch's own iterator has drawn.
    assert torch.rand(()) == expected
    assert source.state(3, 1)["warm"] is (was_warm and persists)
