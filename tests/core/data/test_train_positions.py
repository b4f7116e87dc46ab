"""TrainData's positions: which states are gone on from, and how much of an epoch is left."""

import warnings

import pytest
from torch.utils.data import DataLoader

from stratagem.data.train import TrainData


def made(loader, collectives, **how):
    return TrainData(loader, collectives=collectives, seed=1, **how)


def lists(data, *args):
    return [batch if isinstance(batch, int) else batch.tolist() for batch in data.epoch(*args)]


def test_only_loaders_that_count_their_indices_have_an_exact_length(numbers, alone):
    source = numbers(6)
    assert made(DataLoader(source), alone).has_exact_length
    assert made(DataLoader(source), alone, distributed_sampler=False).has_exact_length
    assert not made(DataLoader(source, sampler=[1, 2]), alone).has_exact_length
    assert not made([1, 2], alone).has_exact_length


@pytest.mark.filterwarnings("ignore:.*(read the same|batches per epoch)")
def test_nothing_is_left_after_the_fewest_batches(ranks):
    def run(collectives):
        data = made(list(range(3 + collectives.rank)), collectives)
        return [lists(data, 0, done) for done in (0, 2, 3, 4)]

    assert ranks(3, run) == [[[0, 1, 2], [2], [], []]] * 3


def test_a_position_of_the_same_kind_is_gone_on_from(numbers, alone):
    data = made(DataLoader(numbers(12), batch_size=2), alone)
    position = data.state(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(DataLoader(numbers(12), batch_size=2), alone).done_after_resume(position) == 4
        assert made(DataLoader(numbers(12), batch_size=4), alone).done_after_resume(position) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_a_position_of_another_kind_is_a_number_of_batches(numbers, alone, turned):
    shared = made(DataLoader(numbers(12), batch_size=2), alone)
    replayed = made(DataLoader(numbers(12), batch_size=2, sampler=range(12)), alone)
    before, after = (replayed, shared) if turned else (shared, replayed)
    names = ("replayed", "sharded") if turned else ("sharded", "replayed")
    said = f"the checkpoint's data were {names[0]} and now they are {names[1]}, in another order"
    with pytest.warns(UserWarning, match=said):
        assert after.done_after_resume(before.state(0, 3)) == 3


def test_a_state_of_another_epoch_or_kind_is_not_gone_on_from(alone):
    class Stateful(list):
        def __init__(self, items):
            super().__init__(items)
            self.loaded = []

        def state_dict(self):
            return "a state"

        def load_state_dict(self, state):
            self.loaded.append(state)

    loader = Stateful([0, 1, 2, 3])
    data = made(loader, alone)
    assert lists(data, 0) == [0, 1, 2, 3]
    position = data.state(1, 2)
    assert position["source"] == "stateful"
    for epoch, kind in ((0, "stateful"), (2, "stateful"), (1, "replayed"), (1, "zebra")):
        assert lists(data, epoch, 2, {**position, "source": kind}) == [2, 3]
    assert loader.loaded == []
    data.epoch(1, 2, position)
    assert loader.loaded == ["a state"]
