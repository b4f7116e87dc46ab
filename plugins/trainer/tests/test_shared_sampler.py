"""A sampler of the user's, read by ranks in shares."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from stratagem_trainer.data.shared_sampler import SharedSampler, distribute_sampler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

DATA = TensorDataset(torch.arange(16.0).view(16, 1))
EVEN = [1.0] * 16


class Drawn:
    """Draws from every global generator."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter([random.randrange(16), int(np.random.randint(16)), int(torch.randint(16, ()))])


class Endless:
    def __iter__(self) -> Any:
        return iter(int, 1)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


def ranks(rank: int = 0, world_size: int = 2) -> Any:
    """Ranks that draw alike."""
    return SimpleNamespace(rank=rank, world_size=world_size, broadcast=lambda value: value)


def test_shares_are_of_one_draw_which_the_seed_and_the_epoch_decide() -> None:
    samplers = [SharedSampler(Drawn(), ranks(rank, 3), seed=5) for rank in range(3)]
    drawn = []
    for epoch in (0, 1, 0):
        shares = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            torch.rand(sampler.rank)  # as ranks that have drawn otherwise before
            before = torch.get_rng_state()
            shares += list(sampler)
            assert torch.equal(torch.get_rng_state(), before)
        drawn.append(shares)
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_an_epoch_is_filled_up_to_equal_shares(count: int) -> None:
    order = list(range(10, 10 + count))
    shares = [SharedSampler(order, ranks(rank, 4), seed=0) for rank in range(4)]
    read = [list(share) for share in shares]
    assert [len(share) for share in shares] == [len(indices) for indices in read] == [-(-count // 4)] * 4
    together = [index for row in zip(*read) for index in row]
    assert together[:count] == order
    assert set(together) == set(order)
    assert list(SharedSampler([], ranks(0, 2), seed=0)) == []


def test_in_evaluations_each_index_is_read_once() -> None:
    shares = [SharedSampler(list(range(7)), ranks(rank, 3), seed=0, pad=False) for rank in range(3)]
    assert [list(share) for share in shares] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [len(share) for share in shares] == [3, 2, 2]
    loader = DataLoader(DATA, 4, sampler=[3, 1, 2])
    assert not distribute_sampler(loader, ranks(), 0, evaluation=True).sampler.pad
    dropping = DataLoader(DATA, 4, sampler=[3, 1, 2], drop_last=True)
    assert distribute_sampler(dropping, ranks(), 0, evaluation=True) is dropping
    # What isn't the whole of the data isn't shared by default.
    drawn = DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=8))
    assert distribute_sampler(drawn, ranks(), 0) is drawn
    assert distribute_sampler(drawn, ranks(), 0, evaluation=True) is not drawn


@pytest.mark.parametrize(
    "sampler", [WeightedRandomSampler(EVEN, 8), SubsetRandomSampler(range(8)), Drawn(), [3, 1, 2]]
)
def test_samplers_of_the_users_are_shared(sampler: Any) -> None:
    loader = DataLoader(DATA, 4, sampler=sampler, drop_last=True)
    shared = distribute_sampler(loader, ranks(), 0)
    assert (type(shared.sampler), shared.sampler.sampler) == (SharedSampler, sampler)
    assert (shared.batch_size, shared.drop_last, shared.dataset) == (4, True, DATA)
    assert distribute_sampler(loader, ranks(world_size=1), 0) is loader


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 4),
        DataLoader(DATA, 4, shuffle=True, generator=torch.Generator()),
        DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0)),
        DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)),
        DataLoader(DATA, 4, sampler=Endless()),
        DataLoader(Stream(), 4),
        [torch.ones(2)],
    ],
    ids=["in order", "shuffled", "distributed", "batches", "endless", "stream", "list"],
)
def test_others_are_left_alone(loader: Any) -> None:
    assert distribute_sampler(loader, ranks(), 0) is loader


def test_a_random_sampler_with_a_generator_of_its_own_is_shared() -> None:
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(3))
    shared = distribute_sampler(DataLoader(DATA, 4, sampler=sampler), ranks(), 0).sampler
    assert (shared.sampler, shared.generator) == (sampler, sampler.generator)
