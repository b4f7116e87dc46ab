"""ShardedSampler: exactness at any length, world size and position."""

import itertools

import pytest
import torch

from stratagem.data.sampler import ShardedSampler, order_seed

COMBINATIONS = list(itertools.product([0, 1, 2, 5, 16, 37], [1, 2, 3, 4, 7]))


def deal(length, world_size, epoch=0, skip=0, **kwargs):
    """Indices of every rank."""
    samplers = [
        ShardedSampler(length, rank=rank, world_size=world_size, **kwargs) for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.start(epoch, skip)
    dealt = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(part) for part in dealt]
    return dealt


def in_turn(dealt):
    rounds = itertools.zip_longest(*dealt)
    return [index for turn in rounds for index in turn if index is not None]


@pytest.mark.parametrize(("length", "world_size"), COMBINATIONS)
def test_without_padding_each_sample_comes_once_in_the_same_order_at_any_world_size(length, world_size):
    (alone,) = deal(length, 1, epoch=3, pad=False, seed=5)
    dealt = deal(length, world_size, epoch=3, pad=False, seed=5)
    assert in_turn(dealt) == alone
    assert sorted(alone) == list(range(length))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize(("length", "world_size"), COMBINATIONS)
def test_padding_continues_with_the_beginning_so_that_ranks_have_equally_many(length, world_size):
    (alone,) = deal(length, 1)
    dealt = deal(length, world_size)
    assert len(set(map(len, dealt))) == 1
    order = in_turn(dealt)
    assert order[:length] == alone
    assert len(order) - length < world_size
    assert order[length:] == (alone * world_size)[: len(order) - length]


@pytest.mark.parametrize(("length", "world_size"), COMBINATIONS)
def test_drop_last_leaves_out_what_is_over(length, world_size):
    (alone,) = deal(length, 1)
    dealt = deal(length, world_size, drop_last=True)
    assert in_turn(dealt) == alone[: length - length % world_size]


@pytest.mark.parametrize("skip", [0, 1, 5, 12, 36, 37, 50])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_skipping_goes_on_with_the_very_next_sample_at_any_world_size(skip, world_size):
    (alone,) = deal(37, 1, epoch=2)
    assert in_turn(deal(37, world_size, epoch=2, skip=skip, pad=False)) == alone[skip:]
    padded = deal(37, world_size, epoch=2, skip=skip)
    assert in_turn(padded)[: 37 - min(skip, 37)] == alone[skip:]
    assert len(set(map(len, padded))) == 1


def test_unshuffled_is_the_dataset_s_own_order():
    assert deal(7, 2, shuffle=False, epoch=4) == [[0, 2, 4, 6], [1, 3, 5, 0]]


def test_each_epoch_and_seed_has_an_order_of_its_own():
    orders = {
        (seed, epoch): tuple(deal(50, 1, epoch, seed=seed)[0]) for seed in range(4) for epoch in range(4)
    }
    assert len(set(orders.values())) == len(orders)
    assert len({order_seed(seed, epoch) for seed in range(30) for epoch in range(30)}) == 900


def test_the_order_is_none_of_the_global_generator_s_business():
    sampler = ShardedSampler(20)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = list(sampler)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert list(sampler) == first


def test_what_an_order_is_seeded_with_stays_the_same_for_ever():
    # Checkpoints of older versions go on in it.
    assert order_seed(3, 1) == 4655817212172366934


@pytest.mark.parametrize("rank", [-1, 2, 3])
def test_a_rank_outside_the_world_is_refused(rank):
    with pytest.raises(ValueError, match=f"rank {rank} isn't among the ranks 0 to 1"):
        ShardedSampler(4, rank=rank, world_size=2)


def test_by_default_one_rank_reads_all_in_the_order_of_seed_0():
    assert list(ShardedSampler(5, shuffle=False)) == [0, 1, 2, 3, 4]
    assert list(ShardedSampler(9)) == list(ShardedSampler(9, rank=0, world_size=1, seed=0))
    assert list(ShardedSampler(9)) != list(ShardedSampler(9, seed=1))
    assert len(ShardedSampler(5)) == 5
    assert list(ShardedSampler(5, num_samples=3)) == list(ShardedSampler(5))[:3]
    assert sorted(ShardedSampler(5, num_samples=10)) == sorted([*range(5), *range(5)])
    first = ShardedSampler(9)
    first.start(0, 2)
    assert list(first) == list(ShardedSampler(9))[2:]
    first.start(0)
    assert list(first) == list(ShardedSampler(9))
    assert sorted(list(ShardedSampler(3, num_samples=4))[:3]) == [0, 1, 2]
    assert len(list(ShardedSampler(3, num_samples=4))) == 4


def test_a_skip_beyond_the_end_leaves_nothing():
    sampler = ShardedSampler(5, shuffle=False)
    sampler.start(1, 7)
    assert (list(sampler), len(sampler), sampler.skip) == ([], 0, 5)
