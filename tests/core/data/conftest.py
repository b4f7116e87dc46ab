"""Threads as ranks, and datasets that tell what was read."""

import pytest
import torch
from threads import on_threads
from torch.utils.data import Dataset


class Numbers(Dataset):
    """Sample i is the number i; `reads` has what was read in this process."""

    def __init__(self, length):
        self.length, self.reads = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.reads.append(index)
        return torch.tensor(index)


@pytest.fixture
def ranks():
    """Run a function of collectives on so many threads as ranks."""
    return on_threads


@pytest.fixture
def alone():
    """Collectives of a single rank."""
    (collectives,) = on_threads(1, lambda collectives: collectives)
    return collectives


@pytest.fixture
def numbers():
    return Numbers
