"""A batch to look at is the first of the data, and takes nothing away from training."""

from __future__ import annotations

import random

import numpy as np
import torch
from stratagem_trainer.data.sample import sample_of
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset


class Noisy(Dataset):
    """Draws from every generator for each sample."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()), random.random(), np.random.random()])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(4.0))


def draws():
    return [torch.rand(()).item(), random.random(), np.random.random()]


def test_it_is_a_batch_of_the_first_samples():
    loader = DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=4, shuffle=True)
    x, y = sample_of(loader)()
    assert x.tolist() == [0, 1, 2, 3]
    assert y.dtype == torch.int64
    assert len(sample_of(DataLoader(TensorDataset(torch.arange(3.0)), batch_size=4))()[0]) == 3
    assert sample_of(DataLoader(TensorDataset(torch.arange(3.0)), batch_size=None))()[0] == 0


def test_generators_and_orders_stay_as_they_were():
    generator = torch.Generator().manual_seed(4)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=generator)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected, order = draws(), [batch[:, 0].tolist() for batch in loader]
    generator.manual_seed(4)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    assert sample_of(loader)().shape == (4, 4)
    assert draws() == expected
    assert [batch[:, 0].tolist() for batch in loader] == order


def test_what_would_be_missing_afterwards_is_not_taken():
    assert sample_of(DataLoader(Stream(), batch_size=2)) is None
    assert sample_of(iter([1, 2])) is None
