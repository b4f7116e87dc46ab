"""`SharedSampler`: share a user's sampler among the ranks, in evaluations or where a loop policy asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler

from stratagem.sdk.loops import (
    global_kept,
    is_rank_aware,
    order_of,
    reads_by_sampler,
    seed_everything,
    with_sampler,
)

if TYPE_CHECKING:
    from stratagem import Collectives


class SharedSampler(Sampler[int]):
    """This rank's share of the indices that `sampler` draws on rank 0: every n-th. Iterating is collective.

    Random numbers from the global generators depend only on the seed and the epoch. With `pad`, an epoch's first
    indices are appended, until the number of indices is a multiple of the number of ranks.

    Args:
        sampler: the user's sampler; it must have a length.
        ranks: collectives of the ranks that read different data.
        seed: seed of the run.
        pad: whether all ranks get the same number of indices.
    """

    def __init__(self, sampler: Any, ranks: Collectives, seed: int, pad: bool = True) -> None:
        self.sampler, self.seed, self.pad = sampler, seed, pad
        self.rank, self.num_replicas, self._broadcast = ranks.rank, ranks.world_size, ranks.broadcast
        self.epoch = 0
        self.generator = getattr(sampler, "generator", None)
        """The user's generator, so that checkpoints save it as with the user's own sampler."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch to draw next."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        with global_kept():
            seed_everything(self.seed + self.epoch)
            own = list(self.sampler)
        # Ranks may draw different indices: a sampler may have its own generator, or depend on the rank's state.
        drawn: list[int] = self._broadcast(own)
        missing = -len(drawn) % self.num_replicas if self.pad else 0
        while missing:
            added = drawn[:missing]
            drawn, missing = drawn + added, missing - len(added)
        return iter(drawn[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        drawn = len(self.sampler)
        return -(-drawn // self.num_replicas) if self.pad else len(range(self.rank, drawn, self.num_replicas))


class ShuffledOrder(Sampler[int]):
    """All indices in the random order that torch's DistributedSampler draws for an epoch.

    Args:
        length: number of indices.
        seed: seed of the run.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch to draw next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())

    def __len__(self) -> int:
        return self.length


def is_shuffled(loader: Any) -> bool:
    """Return whether a DataLoader reads each sample once, in a random order that it draws itself."""
    order = order_of(loader)
    return order is not None and order.is_whole and order.shuffle and not loader.drop_last


def distribute_sampler(loader: Any, ranks: Collectives, seed: int, evaluation: bool = False) -> Any:
    """Return a DataLoader that reads this rank's share of a user's sampler, or else the loader itself.

    These loaders are returned as they are: those whose sampler is rank-aware or has no length, those with a user's
    batch sampler, and those with a sampler that DataLoader made, which `TrainData` and `EvalData` share. In
    evaluations, so are loaders with `drop_last`.

    Args:
        loader: the user's loader.
        ranks: collectives of the ranks that read different data.
        seed: seed of the run.
        evaluation: whether each index is read exactly once. Otherwise all ranks get the same number of indices.

    Raises:
        DataError: the loader can't be constructed again with another sampler.
    """
    if ranks.world_size == 1 or not isinstance(loader, DataLoader) or not reads_by_sampler(loader):
        return loader
    has_own_batches = loader.batch_sampler is not None and loader.batch_size is None
    if has_own_batches or is_rank_aware(loader) or not isinstance(loader.sampler, Sized):
        return loader
    order = order_of(loader)
    is_shared_anyway = order is not None and (order.is_whole or not evaluation)
    if is_shared_anyway or (evaluation and loader.drop_last):
        return loader
    sampler = SharedSampler(loader.sampler, ranks, seed, pad=not evaluation)
    return with_sampler(loader, sampler, drop_last=loader.drop_last)
