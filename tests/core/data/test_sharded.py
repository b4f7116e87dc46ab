"""Samples that are shared out: a resumed run goes on with the very next one."""

import itertools
import json

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from stratagem.data.rebuild import order_of as loader_order
from stratagem.data.sampler import ShardedSampler
from stratagem.data.sharded import ShardedSource
from stratagem.data.train import TrainData

OLD_KEYS = (
    *("source", "epoch", "done", "world_size", "batch_size", "samples", "warm"),
    *("length", "seed", "generators"),
)


def sharded(ranks, world_size, loader, seed=1):
    """Every rank's TrainData, for use without threads: nothing more is sent."""
    return ranks(world_size, lambda collectives: TrainData(loader, collectives=collectives, seed=seed))


def samples_in_order(parts):
    """Global order of what ranks read: their batches' samples in turn."""
    flat = [[sample for batch in part for sample in batch] for part in parts]
    return [sample for turn in itertools.zip_longest(*flat) for sample in turn if sample is not None]


def order_of(length, seed, epoch, shuffle=True):
    sampler = ShardedSampler(length, seed=seed, shuffle=shuffle)
    sampler.start(epoch)
    return list(sampler)


@pytest.mark.parametrize(("workers", "shuffle"), [(0, True), (2, True), (0, False)])
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
    ranks, numbers, workers, shuffle, length, before, after, done
):
    (old_world, old_batch), (new_world, new_batch) = before, after
    old = sharded(ranks, old_world, DataLoader(numbers(length), batch_size=old_batch, shuffle=shuffle))
    read = [[batch.tolist() for batch in itertools.islice(data.epoch(5), done)] for data in old]
    state = json.loads(json.dumps(old[0].state(5, done)))
    consumed = min(length, done * old_world * old_batch)
    assert samples_in_order(read)[:consumed] == order_of(length, 1, 5, shuffle)[:consumed]

    loader = DataLoader(numbers(length), batch_size=new_batch, shuffle=shuffle, num_workers=workers)
    new = sharded(ranks, new_world, loader, seed=99)
    resumed_at = {data.done_after_resume(state) for data in new}
    assert len(resumed_at) == 1
    (new_done,) = resumed_at
    assert new_done in (consumed // (new_world * new_batch), consumed // (new_world * new_batch) + 1)
    rest = [[batch.tolist() for batch in data.epoch(5, new_done, state)] for data in new]
    assert samples_in_order(rest)[: length - consumed] == order_of(length, 1, 5, shuffle)[consumed:]
    assert {len(part) for part in rest} == {new[0].num_batches - new_done}

    # And on into the next epoch, with the order that the first run would have had.
    first = samples_in_order([[next(data.epoch(6)).tolist()] for data in new])
    assert first == order_of(length, 1, 6, shuffle)[: len(first)]


def test_a_resumed_run_can_be_resumed_again_in_the_same_epoch(ranks, numbers):
    (first,) = sharded(ranks, 1, DataLoader(numbers(50), batch_size=7, shuffle=True))
    state = first.state(0, 3)
    second = sharded(ranks, 2, DataLoader(numbers(50), batch_size=4, shuffle=True))
    done = second[0].done_after_resume(state)
    for data in second:
        iterator = data.epoch(0, done, state)
        next(iterator)
        next(iterator)
    again = second[1].state(0, done + 2)
    assert again["samples"] == 21 + 2 * 8
    (third,) = sharded(ranks, 1, DataLoader(numbers(50), batch_size=5, shuffle=True))
    rest = [batch.tolist() for batch in third.epoch(0, third.done_after_resume(again), again)]
    assert samples_in_order([rest]) == order_of(50, 1, 0)[37:]


def test_nothing_is_loaded_that_was_seen(ranks, numbers):
    source = numbers(20)
    (data,) = sharded(ranks, 1, DataLoader(source, batch_size=2, shuffle=True))
    list(data.epoch(0, 7))
    assert source.reads == order_of(20, 1, 0)[14:]


def test_an_epoch_ends_in_the_order_in_which_it_began(ranks, numbers):
    def make(shuffle):
        return sharded(ranks, 1, DataLoader(numbers(20), batch_size=2, shuffle=shuffle))[0]

    def resume(data, state):
        done = data.done_after_resume(state)
        return [sample for batch in data.epoch(3, done, state) for sample in batch.tolist()]

    def next_epoch(data):
        return [sample for batch in data.epoch(4) for sample in batch.tolist()]

    shuffled, ordered = make(True).state(3, 4), make(False).state(3, 4)
    # Before the loader decided, every loader was shuffled, and states had no word of it.
    old = {key: value for key, value in shuffled.items() if key in {*OLD_KEYS}}
    for state in (shuffled, old):
        data = make(False)
        with pytest.warns(UserWarning, match="begun shuffled, and the loader now reads in order"):
            assert resume(data, state) == order_of(20, 1, 3)[8:]
        again = data.state(3, 6)
        assert again["shuffle"] is True
        assert next_epoch(data) == list(range(20))
        with pytest.warns(UserWarning, match="begun shuffled"):
            assert resume(make(False), again) == order_of(20, 1, 3)[12:]
        assert resume(make(True), state) == order_of(20, 1, 3)[8:]
    data = make(True)
    with pytest.warns(UserWarning, match="begun in order, and the loader now reads shuffled"):
        assert resume(data, ordered) == list(range(8, 20))
    assert next_epoch(data) == order_of(20, 1, 4)
    # Nothing of an epoch has been read: it is in the loader's order.
    assert resume(make(False), {**old, "done": 0, "samples": 0}) == list(range(20))


def test_a_random_sampler_s_draws_go_on_at_another_world_size(ranks, numbers):
    def make(batch_size, **draw):
        source = numbers(10)
        return DataLoader(source, batch_size, sampler=RandomSampler(source, **draw))

    for draw in ({"replacement": True, "num_samples": 25}, {"num_samples": 7}, {"replacement": True}):
        (first,) = sharded(ranks, 1, make(4, **draw))
        whole = [batch.tolist() for batch in first.epoch(2)]
        state = json.loads(json.dumps(first.state(2, 1)))
        second = sharded(ranks, 2, make(2, **draw))
        done = {data.done_after_resume(state) for data in second}
        rest = [[batch.tolist() for batch in data.epoch(2, *done, state)] for data in second]
        expected = [sample for batch in whole[1:] for sample in batch]
        assert samples_in_order(rest)[: len(expected)] == expected
    other = sharded(ranks, 1, make(4, num_samples=9))[0]
    with pytest.warns(
        UserWarning, match="over 10 of 10 samples with replacement, and now there are 9 of 10 samples"
    ):
        assert other.done_after_resume({**state, "samples": 4}) == 0


def test_a_dataset_of_another_length_begins_its_epoch_anew(ranks, numbers):
    (old,) = sharded(ranks, 1, DataLoader(numbers(20), batch_size=2))
    (new,) = sharded(ranks, 1, DataLoader(numbers(22), batch_size=2))
    state = old.state(3, 4)
    with pytest.warns(
        UserWarning, match="over 20 samples, and now there are 22 samples: this epoch begins from"
    ):
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


def source_of(loader, collectives, seed=1):
    return ShardedSource(loader, loader_order(loader), collectives, seed)


def test_a_position_counts_samples_over_all_ranks(ranks, numbers):
    loader = DataLoader(numbers(20), batch_size=3, shuffle=True)
    state = ranks(2, lambda collectives: source_of(loader, collectives).state(4, 2))[1]
    assert {name: state[name] for name in ("source", "epoch", "done", "samples", "seed", "shuffle")} == {
        "source": "sharded",
        "epoch": 4,
        "done": 2,
        "samples": 12,
        "seed": 1,
        "shuffle": True,
    }
    assert (state["length"], state["num_samples"], state["replacement"]) == (20, 20, False)
    assert (state["world_size"], state["batch_size"], state["warm"]) == (2, 3, False)


def test_a_position_is_never_behind_the_last_sample(numbers, alone):
    source = source_of(DataLoader(numbers(7), batch_size=3), alone)
    assert [source.state(0, done)["samples"] for done in range(4)] == [0, 3, 6, 7]
    drawn = numbers(7)
    few = source_of(DataLoader(drawn, 3, sampler=RandomSampler(drawn, num_samples=5)), alone)
    assert few.state(0, 2)["samples"] == 5


def test_without_batches_each_item_counts_as_one(numbers, alone):
    source = source_of(DataLoader(numbers(4), batch_size=None), alone)
    assert source.state(0, 3)["samples"] == 3
    assert list(source.open(0, 3, None)) == [3]


def test_a_loaders_generator_goes_on_only_at_the_same_world_size(ranks, numbers, alone):
    def make():
        loader = DataLoader(numbers(8), 2, generator=torch.Generator().manual_seed(5))
        loader.own = torch.Generator().manual_seed(6)
        return loader

    first, second, elsewhere = make(), make(), make()
    source = source_of(first, alone)
    torch.rand(3, generator=source.loader.generator)
    source.open(0, 0, None)
    state = source.state(0, 2)
    began = state["generators"]["loader.generator"]
    again = source_of(second, alone)
    again.open(0, 2, state)
    assert torch.equal(again.state(0, 2)["generators"]["loader.generator"], began)
    other = ranks(2, lambda collectives: source_of(elsewhere, collectives))[0]
    other.open(0, 1, state)
    assert not torch.equal(other.state(0, 1)["generators"]["loader.generator"], began)


def test_an_epoch_without_batches_has_none_left(numbers, alone):
    source = source_of(DataLoader(numbers(2), batch_size=3, drop_last=True), alone)
    assert source.length == 0
    assert source.done_after_resume(source.state(0, 0)) == 0


@pytest.mark.parametrize(
    ("length", "world_size", "how", "last"),
    [
        (37, 2, {"batch_size": 4}, 3),  # 19 on each rank
        (40, 2, {"batch_size": 4}, 4),
        (3, 2, {"batch_size": 4}, 2),
        (37, 2, {"batch_size": 4, "drop_last": True}, 4),
        (37, 1, {"batch_size": None}, 1),
    ],
)
def test_how_many_samples_the_last_batch_of_each_rank_has(ranks, numbers, length, world_size, how, last):
    for each in sharded(ranks, world_size, DataLoader(numbers(length), **how)):
        assert each.last_batch_size == last
        *_, batch = each.epoch(0)
        assert batch.numel() == last


@pytest.mark.parametrize(("length", "repeated"), [(36, ""), (37, ", 2 repeated"), (38, ", 1 repeated")])
def test_the_plan_says_how_many_samples_are_repeated(ranks, numbers, length, repeated):
    for data in sharded(ranks, 3, DataLoader(numbers(length))):
        assert data.description == f"{length} samples in order over 3 ranks{repeated}"


def test_an_epoch_over_other_data_begins_from_its_first_sample(ranks, numbers):
    (old,) = sharded(ranks, 1, DataLoader(numbers(20), batch_size=2, shuffle=True))
    state = old.state(3, 4)
    (data,) = sharded(ranks, 1, DataLoader(numbers(30), batch_size=2, shuffle=True))
    with pytest.warns(UserWarning, match="this epoch begins from its first sample"):
        done = data.done_after_resume(state)
    read = [sample for batch in data.epoch(3, done, state) for sample in batch.tolist()]
    assert read == order_of(30, 1, 3)
