"""A resumed run goes on with the very next sample."""

import itertools
import json

import pytest
import torch
from torch.utils.data import DataLoader

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
