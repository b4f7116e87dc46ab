"""Reproducible random numbers in loader workers: each batch has its own seed, so that a resumed run repeats them.

torch seeds a worker only when it starts. The random numbers for a batch then depend on all batches that the worker
has read before. Here Python's, NumPy's and torch's generators are seeded before every batch, from the run's seed, the
rank, the epoch and the batch's index in it, no matter which worker reads the batch.
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
    """Seeds the workers of a loader over map-style data. Does nothing for a loader without workers.

    Args:
        seed: of the run.
        rank: index of the part of the data that is read here.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._seed, self._rank = seed, rank
        self._numbered: dict[int, _SeededBatches] = {}

    def iterate(
        self, loader: Any, epoch: int, first: int, begin: Callable[[Any], Iterator[Any]]
    ) -> Iterator[Any]:
        """Return `begin(loader)`, called while the loader's batch sampler adds seeds to batches.

        Args:
            loader: the loader. It has its own batch sampler again when this returns.
            epoch: from 0.
            first: index in the epoch of the first batch that its batch sampler yields.
            begin: makes the iterator.
        """
        if not seeds_workers(loader):
            return begin(loader)
        original, worker_init_fn = loader.batch_sampler, loader.worker_init_fn
        # Reuse the object: the iterator of persistent workers keeps the one with which it was made.
        seeded = self._numbered.setdefault(id(original), _SeededBatches(original))
        seeded.begin(f"{self._seed} {self._rank} {epoch}", first)
        # DataLoader refuses to change its samplers, so that an iterator and its loader never disagree. Here they
        # don't disagree: the iterator takes its sampler when it is made, and the loader gets its own back.
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
    """Whether workers of `loader` can be seeded per batch: it has workers that read batches of map-style data."""
    return bool(reads_by_sampler(loader) and loader.num_workers and loader.batch_sampler)


def own_generators(loader: Any) -> list[str]:
    """Return the names of a dataset's attributes that are generators. Workers have copies, which aren't saved."""
    held = getattr(getattr(loader, "dataset", None), "__dict__", {})
    return [name for name, value in held.items() if isinstance(value, _GENERATORS)]


class _SeededBatch(list[Any]):
    """Indices of a batch, and the seed for the worker that reads it."""

    worker_seed: int


class _SeededBatches:
    """Wraps a batch sampler, and adds seeds to its batches."""

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
        if name == "sampler":  # not set yet while a copy is made
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
