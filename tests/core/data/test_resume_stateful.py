"""Loaders that keep their own state are asked for it."""

import itertools

import pytest
from torch.utils.data import IterableDataset

from stratagem.data.sampler import ShardedSampler
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


def test_a_stateful_loader_at_another_world_size_is_read_from_its_beginning(alone):
    state = {**TrainData(Tape(), collectives=alone, seed=0).state(0, 2), "world_size": 2}
    assert list(TrainData(Tape(), collectives=alone, seed=0).epoch(0, 2, state)) == [3, 4, 5]
