"""`EvalData`: the batches of validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch

from stratagem.data.loaders import no_batch, refuse_several
from stratagem.data.rebuild import has_default_sampler, keeps_order, with_sampler
from stratagem.data.sampler import ShardedSampler
from stratagem.data.sharing import (
    batch_size_in,
    length_of,
    name_of,
    own_sampler,
    reads_by_sampler,
    warn_of_same_data,
)
from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives

_END = object()


class EvalData:
    """Evaluation batches of this rank. All ranks together read every sample exactly once.

    That holds for a DataLoader over map-style data with its default sampler. It is read from the first sample to the
    last, including incomplete batches, whatever its `shuffle` and `drop_last` are. Any other loader is left as it is.

    Iterating yields pairs (batch, counted). A batch whose `counted` is False exists only because every rank has to
    run a forward. Drop its results.

    Args:
        loader: a DataLoader, or any iterable of batches.
        collectives: rank and number of ranks. Constructing is collective. Iterating is collective with
            `equal_batches`, and also for a loader that isn't divided if a rank doesn't know its number of batches.
        distributed_sampler: whether to divide samples among ranks; False leaves every loader as it is.
        equal_batches: whether all ranks run the same number of batches, for strategies whose forward is collective.

    Attributes:
        repeats: whether some rank gets batches that don't count; True if that isn't known.
        num_batches: number of pairs per iteration on this rank; None if it isn't known.
        batch_size: samples per batch and rank, according to the loader; None if it doesn't say.
        description: one clause for the printed plan.

    Raises:
        DataError: no rank has a batch, which may be found only while iterating; several loaders were given; or a
            subclass of DataLoader can't be built again with another sampler.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        collectives: Collectives,
        distributed_sampler: bool = True,
        equal_batches: bool = False,
    ) -> None:
        refuse_several(loader)
        self._collectives, self._loader = collectives, loader
        self._equal = equal_batches and collectives.world_size > 1
        self._sampler: ShardedSampler | None = None
        self.batch_size = batch_size_in(loader)
        if distributed_sampler and has_default_sampler(loader):
            self._share(loader)
        elif distributed_sampler:
            warn_of_same_data(loader, collectives, "metrics and predictions count each sample several times")
        self.description = self._describe()
        self.num_batches = self._own_length = length_of(self._loader)
        if self._sampler is not None and self._sampler.length == 0:
            raise self._no_batch()
        self._is_sized, self.repeats = True, False
        if self._equal or self._sampler is None:
            self._agree_on_length(collectives.gather_objects(self._own_length))

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        if self._equal:
            return self._equally_many(iter(self._loader))
        if self._sampler is not None:
            return zip(self._loader, repeat(True))
        return self._at_least_one(iter(self._loader))

    def order(self, n_local: int) -> list[int] | None:
        """Return the dataset indices of this rank's first `n_local` samples; None if they aren't known."""
        return None if self._sampler is None else list(self._sampler)[:n_local]

    def sizes(self, parts: list[list[Any]]) -> list[list[int]] | None:
        """Return the number of samples in each batch that counted, by rank; None for a loader that isn't divided.

        Args:
            parts: for each rank, an item for each of its batches that counted, such as its prediction.
        """
        if self._sampler is None:
            return None
        size, length, world_size = self.batch_size or 1, self._sampler.length, len(parts)
        counts = [len(range(rank, length, world_size)) for rank in range(world_size)]
        batches = [[min(size, count - first) for first in range(0, count, size)] for count in counts]
        # A limit on the number of batches leaves the last ones out.
        return [own[: len(part)] for own, part in zip(batches, parts)]

    def _share(self, loader: Any) -> None:
        world_size = self._collectives.world_size
        sampler = ShardedSampler(
            len(loader.dataset), rank=self._collectives.rank, world_size=world_size, shuffle=False, pad=False
        )
        if world_size == 1 and keeps_order(loader) and not loader.drop_last:
            self._sampler = sampler
            return
        try:
            self._loader = with_sampler(loader, sampler, drop_last=False)
        except DataError:
            # A single rank needs no division, so keep the loader as it is.
            if world_size > 1:
                raise
        else:
            self._sampler = sampler

    def _describe(self) -> str:
        several = self._collectives.world_size > 1
        if self._sampler is not None:
            over = f" over {self._collectives.world_size} ranks" if several else ""
            return f"{self._sampler.length:,} samples in order{over}, each once"
        reader = own_sampler(self._loader) if reads_by_sampler(self._loader) else name_of(self._loader)
        each = f" on each of {self._collectives.world_size} ranks" if several else ""
        return f"batches as a {reader} gives them{each}"

    def _agree_on_length(self, lengths: list[Any]) -> None:
        self._is_sized = None not in lengths
        if self._is_sized and not any(lengths):
            raise self._no_batch()
        if self._equal:
            self.num_batches = max(lengths) if self._is_sized else None
            self.repeats = not self._is_sized or min(lengths) != max(lengths)

    def _no_batch(self) -> DataError:
        return no_batch("this evaluation", self.description, self._loader)

    def _at_least_one(self, batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        batch = next(batches, _END)
        has_one = batch is not _END
        if self._is_sized:
            # A rank without samples is fine: another one has some.
            is_any = has_one or self._own_length == 0
        else:
            is_any = any(self._collectives.gather_objects(has_one))
        if not is_any:
            raise self._no_batch()
        if has_one:
            yield batch, True
            yield from zip(batches, repeat(True))

    def _equally_many(self, batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        batch = next(batches, _END)
        has_one = self._collectives.gather_objects(batch is not _END)
        if not any(has_one):
            raise self._no_batch()
        spare = batch
        if not all(has_one):
            # Some rank has no batch of its own to repeat.
            source = has_one.index(True)
            (borrowed,) = self._collectives.broadcast(
                [batch] if has_one[self._collectives.rank] else None, source
            )
            spare = borrowed if batch is _END else batch
        count = 0
        while True:
            counted = batch is not _END
            spare = batch if counted else spare
            yield spare, counted
            count += 1
            if count == self.num_batches:
                return
            batch = next(batches, _END)
            if self.num_batches is None and not self._any_has_one(batch is not _END):
                return

    def _any_has_one(self, this_has: bool) -> bool:
        flag = torch.tensor(int(this_has), device=self._collectives.device)
        return bool(self._collectives.all_reduce(flag, "max").item())
