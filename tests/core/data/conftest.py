"""Threads as ranks, with collectives that really wait for each other, and datasets that tell what was read."""

import threading

import pytest
import torch
from torch.utils.data import Dataset

from stratagem.collectives.base import Collectives

TIMEOUT_S = 20


class _Meeting:
    """Where the threads of one run exchange values: twice a barrier around a list."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size)
        self.slots = [None] * world_size


class ThreadCollectives(Collectives):
    """Collectives among threads of one process; a rank that doesn't come breaks the barrier for all."""

    def __init__(self, rank, meeting):
        self.rank = self.local_rank = rank
        self.node_rank = 0
        self.world_size = len(meeting.slots)
        self.device = torch.device("cpu")
        self.calls = 0
        self._meeting = meeting

    def gather_objects(self, value):
        self.calls += 1
        self._meeting.slots[self.rank] = value
        self._meeting.barrier.wait(TIMEOUT_S)
        gathered = list(self._meeting.slots)
        self._meeting.barrier.wait(TIMEOUT_S)
        return gathered

    def all_gather(self, tensor, sync_grads=False):
        return torch.stack(self.gather_objects(tensor.detach().clone()))

    def all_reduce(self, tensor, op="mean"):
        gathered = self.all_gather(tensor)
        if op == "mean":
            return (gathered.sum(0) / self.world_size).to(tensor.dtype)
        return {"sum": gathered.sum, "min": gathered.amin, "max": gathered.amax, "product": gathered.prod}[
            op
        ](0)

    def broadcast(self, value, src=0):
        return self.gather_objects(value)[src]

    def barrier(self, name=None):
        self.gather_objects(name)


def run_ranks(world_size, function):
    """Return what `function(collectives)` returns on each rank; raise what a rank raises first."""
    meeting = _Meeting(world_size)
    results, errors = [None] * world_size, []

    def run(rank):
        try:
            results[rank] = function(ThreadCollectives(rank, meeting))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results


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
    return run_ranks


@pytest.fixture
def alone():
    """Collectives of a single rank."""
    return ThreadCollectives(0, _Meeting(1))


@pytest.fixture
def numbers():
    return Numbers
