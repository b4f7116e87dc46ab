"""Loaders that `Runtime.dataloader` returns, for your own training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from stratagem.data.evaluate import EvalData
from stratagem.data.train import TrainData
from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.runtime.session import Session


BatchT = TypeVar("BatchT")


class _Given:
    """Has the attributes of the loader that it was made of, as `dataset` and `batch_size`."""

    _given: Iterable[Any]
    _data: TrainData | EvalData

    def __len__(self) -> int:
        if self._data.num_batches is None:
            raise TypeError("this loader doesn't know how many batches it has")
        return self._data.num_batches

    def __getattr__(self, name: str) -> Any:
        if name == "_given":  # while it is made from a pickle or a copy
            raise AttributeError(name)
        return getattr(self._given, name)


class EpochLoader(_Given, Generic[BatchT]):
    """One epoch of training per iteration, in the same order on any number of ranks.

    Attributes:
        epoch: index of the epoch that the next iteration runs; set it to go on where a run stopped.
        batches_given: how many the latest iteration has given.
    """

    _data: TrainData

    def __init__(
        self,
        loader: Iterable[BatchT],
        collectives: Collectives,
        mover: Callable[[Iterable[Any]], Iterable[Any]],
        seed: int,
        distributed_sampler: bool,
    ) -> None:
        self.epoch = self.batches_given = 0
        self._mover, self._given = mover, loader
        self._data = TrainData(
            loader, collectives=collectives, seed=seed, distributed_sampler=distributed_sampler
        )

    def __iter__(self) -> Iterator[BatchT]:
        batches = self._data.epoch(self.epoch)
        self.epoch += 1
        return self._counted(self._mover(batches))

    @property
    def batches_left(self) -> int | None:
        """How many batches follow in this iteration; None where the loader doesn't know its length."""
        return None if self._data.num_batches is None else self._data.num_batches - self.batches_given

    def _counted(self, batches: Iterable[BatchT]) -> Iterator[BatchT]:
        self.batches_given = 0
        for batch in batches:
            self.batches_given += 1
            yield batch


class EvalLoader(_Given, Generic[BatchT]):
    """All samples once per iteration, over all ranks together and in the data's own order.

    Ranks may have different numbers of samples, and of batches: add up sums and counts over ranks, not
    means (docs/guides/data.md).

    Attributes:
        repeats: whether `pairs` gives some rank batches that don't count; True where that isn't known.
            Only under a strategy whose forward is a collective.
    """

    _data: EvalData

    def __init__(
        self,
        loader: Iterable[BatchT],
        collectives: Collectives,
        mover: Callable[[Iterable[Any]], Iterable[Any]],
        distributed_sampler: bool,
        equal_batches: bool,
    ) -> None:
        self._mover, self._given = mover, loader
        self._data = EvalData(
            loader,
            collectives=collectives,
            distributed_sampler=distributed_sampler,
            equal_batches=equal_batches,
        )
        self.repeats = self._data.repeats

    def __iter__(self) -> Iterator[BatchT]:
        if self.repeats:
            raise DataError(
                "ranks may have different numbers of batches, and this strategy's forward needs all ranks: iterate "
                "over `for batch, counts in loader.pairs()`, run the forward each time, and leave out the result "
                "where `counts` is False"
            )
        return (batch for batch, _ in self.pairs())

    def pairs(self) -> Iterator[tuple[BatchT, bool]]:
        """Yield (batch, counts), equally often on every rank where the strategy's forward is a collective.

        A batch that doesn't count is there only so that this rank takes part in the forward of the
        others. Every rank must iterate to the end.
        """
        return iter(self._mover(self._data))


def share_loader(
    session: Session,
    loader: Iterable[Any],
    mover: Callable[[Iterable[Any]], Iterable[Any]],
    *,
    evaluation: bool,
    share: bool,
) -> EpochLoader[Any] | EvalLoader[Any]:
    """Return `loader` shared among ranks unless not `share`, on the device by `mover`; see `Runtime.dataloader`."""
    data, run = session.collectives.data, session.run
    if evaluation:
        is_collective = "collective_forward" in run.capabilities.features
        return EvalLoader(loader, data, mover, share, is_collective)
    return EpochLoader(loader, data, mover, run.config.seed or 0, share)
