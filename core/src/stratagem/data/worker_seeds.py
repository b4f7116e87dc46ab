"""Reproducible random numbers in loader workers: each batch has its own seed, so that a resumed run repeats them.

torch seeds a worker once, when it starts, so that what it draws for a batch depends on all batches that it has
read before. Here Python's, NumPy's and torch's generators are seeded before every batch, by the run's seed, the
epoch, the rank and the batch's place in the epoch, whichever worker reads it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from stratagem.data.sharing import reads_by_sampler
from stratagem.data.torch_private import before_each_fetch

_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class WorkerSeeds:
    """Gives the workers of a loader over map-style data their seeds; nothing where there are no workers.

    Args:
        seed: of the run.
        rank: which part of the data is read here.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._seed, self._rank = seed, rank
        self._numbered: dict[int, _SeededBatches] = {}

    def iterate(
        self, loader: Any, epoch: int, first: int, begin: Callable[[Any], Iterator[Any]]
    ) -> Iterator[Any]:
        """Return what `begin` makes of `loader`, while that hands out batches with seeds.

        Args:
            loader: as it was made; has its own samplers back when this returns.
            epoch: from 0.
            first: number of the first batch that its batch sampler gives, in its epoch.
            begin: makes the iterator.
        """
        if not seeds_workers(loader):
            return begin(loader)
        original, worker_init_fn = loader.batch_sampler, loader.worker_init_fn
        # Persistent workers' iterator keeps the one that it was made with.
        seeded = self._numbered.setdefault(id(original), _SeededBatches(original))
        seeded.begin(f"{self._seed} {self._rank} {epoch}", first)
        # DataLoader refuses to change its samplers, so that an iterator and its loader never disagree; here
        # they don't: the iterator takes what it needs while it is made, and the loader has its own back.
        # patch: loader samplers
        object.__setattr__(loader, "batch_sampler", seeded)
        loader.worker_init_fn = partial(_start_worker, worker_init_fn)
        try:
            return begin(loader)
        finally:
            # patch: loader samplers
            object.__setattr__(loader, "batch_sampler", original)
            loader.worker_init_fn = worker_init_fn


def seeds_workers(loader: Any) -> bool:
    """Whether random numbers in workers of `loader` can be drawn again: it reads batches of map-style data."""
    return bool(reads_by_sampler(loader) and loader.num_workers and loader.batch_sampler)


def own_generators(loader: Any) -> list[str]:
    """Names of attributes of a loader's dataset that are generators: workers have copies that no checkpoint saves."""
    held = getattr(getattr(loader, "dataset", None), "__dict__", {})
    return [name for name, value in held.items() if isinstance(value, _GENERATORS)]


class _SeededBatch(list[Any]):
    """Indices of a batch, and what its worker's generators are seeded with."""

    worker_seed: int


class _SeededBatches:
    """Stands for a batch sampler."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._epoch, self._first = "", 0

    def begin(self, epoch: str, first: int) -> None:
        self._epoch, self._first = epoch, first

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        for number, batch in enumerate(self.sampler, self._first):
            if type(batch) is list:
                batch = _SeededBatch(batch)
                batch.worker_seed = _seed_of(epoch, number)
            yield batch

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # while it is made from a copy
            raise AttributeError(name)
        return getattr(self.sampler, name)


def _seed_of(epoch: str, number: int) -> int:
    digest = hashlib.blake2b(f"{epoch} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _start_worker(worker_init_fn: Callable[[int], None] | None, worker: int) -> None:
    if worker_init_fn is not None:
        worker_init_fn(worker)
    before_each_fetch(_seed_generators)


def _seed_generators(indices: Any) -> None:
    seed = getattr(indices, "worker_seed", None)
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # Not torch.manual_seed, which would look for devices.
        torch.default_generator.manual_seed(seed % 2**63)
