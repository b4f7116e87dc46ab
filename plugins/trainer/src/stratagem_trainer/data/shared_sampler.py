"""A sampler of the user's, shared among the ranks: in evaluations, and for programs of trainers that do that."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler

from stratagem.sdk.loops import (
    global_kept,
    knows_its_part,
    order_of,
    reads_by_sampler,
    seed_everything,
    with_sampler,
)

if TYPE_CHECKING:
    from stratagem import Collectives


class SharedSampler(Sampler[int]):
    """This rank's share, every n-th index, of what `sampler` draws on rank 0. Iterating is collective.

    What it draws from global generators depends on the seed and the epoch alone. An epoch is filled up with its first
    indices to a multiple of the number of ranks, unless not `pad`.

    Args:
        sampler: the user's; has a length.
        ranks: those that read different data.
        seed: of the run.
        pad: whether all shares are equally long.
    """

    def __init__(self, sampler: Any, ranks: Collectives, seed: int, pad: bool = True) -> None:
        self.sampler, self.seed, self.pad = sampler, seed, pad
        self.rank, self.num_replicas, self._broadcast = ranks.rank, ranks.world_size, ranks.broadcast
        self.epoch = 0
        self.generator = getattr(sampler, "generator", None)
        """In checkpoints, as it would be of the user's own."""

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is drawn next."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        with global_kept():
            seed_everything(self.seed + self.epoch)
            own = list(self.sampler)
        # Ranks may draw otherwise: from generators of a sampler's own, or by what a rank has seen.
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
        length: how many.
        seed: of the run.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is drawn next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())

    def __len__(self) -> int:
        return self.length


def is_shuffled(loader: Any) -> bool:
    """Whether a DataLoader reads each sample once, in a random order that it draws itself."""
    order = order_of(loader)
    return order is not None and order.is_whole and order.shuffle and not loader.drop_last


def share_sampler(loader: Any, ranks: Collectives, seed: int, evaluation: bool = False) -> Any:
    """Return a DataLoader with a sampler of the user's, read by ranks in shares; any other loader as it is.

    Left alone are samplers that know their share already, those without a length, batch samplers of the user's, and
    those that a DataLoader makes itself, which are shared anyway; and in evaluations loaders with `drop_last`.

    Args:
        loader: the user's.
        ranks: those that read different data.
        seed: of the run.
        evaluation: whether each index of a draw is read once; shares are equally long otherwise.

    Raises:
        DataError: the loader's class can't be built again with another sampler.
    """
    if ranks.world_size == 1 or not isinstance(loader, DataLoader) or not reads_by_sampler(loader):
        return loader
    has_own_batches = loader.batch_sampler is not None and loader.batch_size is None
    if has_own_batches or knows_its_part(loader) or not isinstance(loader.sampler, Sized):
        return loader
    order = order_of(loader)
    is_shared_anyway = order is not None and (order.is_whole or not evaluation)
    if is_shared_anyway or (evaluation and loader.drop_last):
        return loader
    sampler = SharedSampler(loader.sampler, ranks, seed, pad=not evaluation)
    return with_sampler(loader, sampler, drop_last=loader.drop_last)
