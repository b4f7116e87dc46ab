"""`TrainData`: the batches of training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from stratagem.data.loaders import can_be_read_once, no_batch, refuse_several
from stratagem.data.rebuild import has_default_sampler, order_of
from stratagem.data.sharded import ShardedSource
from stratagem.data.sharing import reads_by_sampler, warn, warn_of_same_data
from stratagem.data.sources import ReplayedSource, Source, StatefulSource
from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives

_END = object()


class TrainData:
    """Training batches of this rank, in an order that a resumed run continues.

    A DataLoader over map-style data with one of torch's samplers is divided among ranks. The order is the same at any
    world size: with `shuffle=False` the dataset's own, with `shuffle=True` a random one for each epoch, which depends
    only on `seed` and the epoch. Any other loader is left as it is. Constructing is collective.

    Args:
        loader: a DataLoader, or any iterable of batches that can be iterated once per epoch.
        collectives: rank and number of ranks; used while constructing, and once per batch if the number of batches
            isn't known beforehand.
        seed: of random orders.
        distributed_sampler: whether to divide samples among ranks; False leaves every loader as it is.

    Attributes:
        num_batches: per epoch, the same on every rank; None if that isn't known.
        batch_size: samples per batch and rank, according to the loader; None if it doesn't say.
        description: one clause for the printed plan.

    Raises:
        DataError: an epoch has no batch on some rank; several loaders were given; or a subclass of DataLoader can't
            be built again with another sampler.
    """

    def __init__(
        self, loader: Iterable[Any], *, collectives: Collectives, seed: int, distributed_sampler: bool = True
    ) -> None:
        refuse_several(loader)
        self._collectives = collectives
        self._source = _source(loader, collectives, seed, distributed_sampler)
        self.batch_size = self._source.batch_size
        self.description = self._source.description
        if can_be_read_once(loader):
            self.description += ", which can be read only once"
        self.num_batches, self._agrees = self._agree_on_length()

    @property
    def has_exact_length(self) -> bool:
        """Whether `num_batches` is exact. The lengths of users' samplers and iterables may be guesses."""
        source = self._source
        return isinstance(source, ShardedSource) or has_default_sampler(source.loader)

    @property
    def last_batch_size(self) -> int | None:
        """Number of samples in an epoch's last batch on each rank; None if that isn't known for sure."""
        source = self._source
        return source.last_batch_size if isinstance(source, ShardedSource) else None

    def epoch(self, epoch: int, done: int = 0, state: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the rest of an epoch. All ranks must iterate equally far.

        If `done` isn't 0, the global random number generators don't change. Otherwise the iterator may draw from them
        when it is made: restore them before.

        Args:
            epoch: from 0; a custom sampler's `set_epoch` is called with it.
            done: number of batches of this epoch that this rank has consumed already; in a resumed run, what
                `done_after_resume` returned.
            state: in a resumed run, what the method `state` returned for this epoch: on this rank if the world size
                is the same, otherwise on any rank.

        Raises:
            DataError: while iterating, if the epoch begins here and has no batch on some rank.
        """
        own = None if state is None or not self._can_continue(state, epoch) else state
        batches = self._source.open(epoch, done, own)
        if self._agrees:
            return self._while_all_have_one(batches, epoch, is_whole=not done)
        if not done and not isinstance(self._source, ShardedSource):
            batches = self._at_least_one(batches, epoch)
        if self.num_batches is not None and self._source.length != self.num_batches:
            return islice(batches, max(0, self.num_batches - done))
        return batches

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """Return this rank's position after `done` batches of `epoch`, ready for a checkpoint."""
        return self._source.state(epoch, done)

    def resumption(self) -> dict[str, str]:
        """Return what a resumed run with as many ranks doesn't read exactly as before → the reason."""
        return self._source.resumption()

    def done_after_resume(self, state: Mapping[str, Any]) -> int:
        """Return how many of this run's batches a saved position stands for.

        At another world size or batch size, that differs from the saved number. It is 0 if the position has no
        meaning for this run's data, so that the epoch begins again.
        """
        if state["source"] == self._source.name:
            return self._source.done_after_resume(state)
        warn(
            self._collectives,
            f"the checkpoint's data were {state['source']} and now they are {self._source.name}, in another order: "
            "samples of this epoch may come twice or not at all",
        )
        return Source.done_after_resume(self._source, state)

    def _can_continue(self, state: Mapping[str, Any], epoch: int) -> bool:
        return bool(state["source"] == self._source.name and state["epoch"] == epoch)

    def _agree_on_length(self) -> tuple[int | None, bool]:
        """Return the number of batches, and whether ranks must agree before each one."""
        loader, length = self._source.loader, self._source.length
        if self._collectives.world_size == 1:
            self._refuse_none([length])
            return length, False
        # An iterable dataset may yield more or fewer batches than its length says.
        sure = reads_by_sampler(loader) or not isinstance(loader, DataLoader)
        answers = self._collectives.gather_objects((length, sure))
        lengths = [length for length, _ in answers]
        self._refuse_none(lengths)
        if None in lengths:
            return None, True
        fewest = min(lengths)
        if not all(sure for _, sure in answers):
            return fewest, True
        if fewest != max(lengths):
            warn(
                self._collectives,
                f"ranks 0 to {len(lengths) - 1} have {', '.join(map(str, lengths))} batches per epoch: all stop "
                f"after {fewest}, and the rest isn't trained on",
            )
        return fewest, False

    def _refuse_none(self, lengths: list[int | None]) -> None:
        if 0 not in lengths:
            return
        ranks = [rank for rank, length in enumerate(lengths) if length == 0]
        who = "" if len(ranks) == len(lengths) else f" on {_ranks(ranks, len(lengths))}"
        raise DataError(
            f"an epoch of this loader has no batch{who} ({self.description}; batch size {self.batch_size} on each of "
            f"{len(lengths)} ranks): give it more samples, a smaller batch_size or drop_last=False"
        )

    def _at_least_one(self, batches: Iterator[Any], epoch: int) -> Iterator[Any]:
        batch = next(batches, _END)
        if batch is _END:
            where = f"epoch {epoch}"
            if self._collectives.world_size > 1:
                where += f" on {_ranks([self._collectives.rank], self._collectives.world_size)}"
            raise no_batch(where, self.description, self._source.loader)
        yield batch
        yield from batches

    def _while_all_have_one(self, batches: Iterator[Any], epoch: int, is_whole: bool) -> Iterator[Any]:
        collectives, is_first = self._collectives, is_whole
        while True:
            batch = next(batches, _END)
            has_one = torch.tensor(int(batch is not _END), device=collectives.device)
            if not collectives.all_reduce(has_one, "min").item():
                break
            is_first = False
            yield batch
        if is_first:
            answers = collectives.gather_objects(batch is not _END)
            without = [rank for rank, has_batch in enumerate(answers) if not has_batch]
            where = f"epoch {epoch} on {_ranks(without, len(answers))}"
            raise no_batch(where, self.description, self._source.loader)


def _ranks(ranks: list[int], count: int) -> str:
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"{which} of {count}"


def _source(loader: Any, collectives: Collectives, seed: int, share: bool) -> Source:
    order = order_of(loader) if share else None
    if order is not None:
        try:
            return ShardedSource(loader, order, collectives, seed)
        except DataError:
            if collectives.world_size > 1:
                raise
            # A single rank needs no division, so keep the loader's own order.
    elif share:
        warn_of_same_data(loader, collectives, "each batch is trained on several times")
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return StatefulSource(loader, collectives, seed)
    return ReplayedSource(loader, collectives, seed)
