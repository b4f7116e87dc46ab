"""`ShardedSampler`: divides one order of all samples among the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class ShardedSampler(Sampler[int]):
    """Yields the indices of one rank, from a global order that is the same at any world size.

    A rank reads positions rank, rank + world_size, rank + 2 · world_size, … of that order. The ranks' batches number
    k are therefore positions k · B to (k + 1) · B - 1 together, where B is the global batch size. The order depends
    only on `seed` and the epoch, never on a global random number generator.

    Args:
        length: number of samples in the dataset.
        rank: index of the part that is read here, from 0.
        world_size: number of parts into which the order is divided.
        shuffle: whether each epoch has a new random order; otherwise it has the dataset's own order.
        seed: of the random orders.
        pad: True gives all ranks the same number of samples, for training: the order continues with its own beginning
            up to a multiple of `world_size`. False reads each sample exactly once, for evaluation: ranks' numbers of
            samples differ by at most one.
        drop_last: whether to give all ranks the same number of samples by leaving out those after the last multiple
            of `world_size`. Overrides `pad`.
        num_samples: number of samples per epoch, over all ranks, as for torch's RandomSampler; None for `length`.
            With more than `length`, the dataset is read several times.
        replacement: whether a random order draws samples with replacement.
    """

    def __init__(
        self,
        length: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        pad: bool = True,
        drop_last: bool = False,
        num_samples: int | None = None,
        replacement: bool = False,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} isn't among the ranks 0 to {world_size - 1}")
        self.length, self.rank, self.world_size = length, rank, world_size
        self.shuffle, self.seed, self.pad, self.drop_last = shuffle, seed, pad, drop_last
        self.num_samples = length if num_samples is None else num_samples
        self.replacement = replacement
        self.epoch = self.skip = 0

    def start(self, epoch: int, skip: int = 0) -> None:
        """Make the next iteration read `epoch` without its first `skip` samples.

        Args:
            epoch: from 0.
            skip: number of samples of the global order that all ranks have consumed already, at any world size.
        """
        self.epoch, self.skip = epoch, min(skip, self.num_samples)

    def __iter__(self) -> Iterator[int]:
        end = self._end()
        positions = torch.arange(min(self.skip + self.rank, end), end, self.world_size)
        indices = positions.remainder_(max(self.num_samples, 1))
        if self.shuffle and len(indices):
            indices = self._random_order()[indices]
        return iter(indices.tolist())

    def __len__(self) -> int:
        return len(range(self.skip + self.rank, self._end(), self.world_size))

    def _random_order(self) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(order_seed(self.seed, self.epoch))
        if self.replacement:
            return torch.randint(self.length, (self.num_samples,), generator=generator)
        rounds = -(-self.num_samples // self.length)
        orders = [torch.randperm(self.length, generator=generator) for _ in range(rounds)]
        return torch.cat(orders)[: self.num_samples]

    def _end(self) -> int:
        left = self.num_samples - self.skip
        if self.drop_last:
            left -= left % self.world_size
        elif self.pad:
            left += -left % self.world_size
        return self.skip + left


def order_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's random order. The seeds of any two (seed, epoch) are unrelated."""
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
