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
    """Has the attributes of the user's loader, such as `dataset` and `batch_size`."""

    _given: Iterable[Any]
    _data: TrainData | EvalData

    def __len__(self) -> int:
        if self._data.num_batches is None:
            raise TypeError("this loader doesn't know how many batches it has")
        return self._data.num_batches

    def __getattr__(self, name: str) -> Any:
        if name == "_given":  # not set yet while a pickle or a copy is made
            raise AttributeError(name)
        return getattr(self._given, name)


class EpochLoader(_Given, Generic[BatchT]):
    """One epoch of training per iteration, in the same order on any number of ranks.

    Attributes:
        epoch: index of the epoch that the next iteration runs; set it to continue where a run stopped.
        batches_given: number of batches that the latest iteration has given.
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
        """Number of batches that follow in this iteration; None if the loader doesn't know its length."""
        return None if self._data.num_batches is None else self._data.num_batches - self.batches_given

    def _counted(self, batches: Iterable[BatchT]) -> Iterator[BatchT]:
        self.batches_given = 0
        for batch in batches:
            self.batches_given += 1
            yield batch


class EvalLoader(_Given, Generic[BatchT]):
    """All samples once per iteration, over all ranks together and in the data's own order.

    Ranks may have different numbers of samples and batches. Add up sums and counts over ranks, not means: see
    docs/guides/data.md.

    Attributes:
        repeats: whether `pairs` gives some rank batches that don't count; True if that isn't known. It happens only
            under a strategy whose forward is collective.
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
        """Yield (batch, counts). If the strategy's forward is collective, all ranks get the same number of batches.

        A batch whose `counts` is False only lets this rank take part in the other ranks' forward. Every rank must
        iterate to the end.
        """
        return iter(self._mover(self._data))


def distribute_loader(
    session: Session,
    loader: Iterable[Any],
    mover: Callable[[Iterable[Any]], Iterable[Any]],
    *,
    evaluation: bool,
    share: bool,
) -> EpochLoader[Any] | EvalLoader[Any]:
    """Return `loader`, divided among ranks if `share`, on the device by `mover`; see `Runtime.dataloader`."""
    data, run = session.collectives.data, session.run
    if evaluation:
        is_collective = "collective_forward" in run.capabilities.features
        return EvalLoader(loader, data, mover, share, is_collective)
    return EpochLoader(loader, data, mover, run.config.seed or 0, share)
