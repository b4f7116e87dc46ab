"""`ShardedSampler`: one order of all samples, dealt out to the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class ShardedSampler(Sampler[int]):
    """Indices of one rank, out of a global order that is the same at any world size.

    The rank has positions rank, rank + world_size, rank + 2 · world_size, … of that order, so that the
    ranks' batches number k are together samples k · B to (k + 1) · B - 1 of it, B being the global
    batch size. The order depends on `seed` and the epoch alone, never on a global random number
    generator.

    Args:
        length: number of samples in the dataset.
        rank: which part is read here, from 0.
        world_size: into how many parts the order is dealt.
        shuffle: a new random order in each epoch; the dataset's own order otherwise.
        seed: of the random orders.
        pad: ranks have equally many: the order is continued by its own beginning to a multiple of
            `world_size` (training). Without, each sample comes exactly once, and ranks differ by at
            most one (evaluation).
        drop_last: ranks have equally many: what is over a multiple of `world_size` is left out.
            Overrides `pad`.
        num_samples: how many of a random order make an epoch, over all ranks, as for torch's
            RandomSampler; None for `length`. More than `length` go through it several times.
        replacement: each of a random order's samples is drawn from all of them.
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
        """Let the next iteration be of `epoch`, without its first `skip` samples.

        Args:
            epoch: from 0.
            skip: samples of the global order, over all ranks, that were consumed already; at whatever
                world size that was.
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
    """Return what an epoch's random order is seeded with: unrelated for any two (seed, epoch)."""
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
