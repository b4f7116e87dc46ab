"""What `Runtime.dataloader` returns: loaders of a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

from stratagem.data.batches import moved
from stratagem.data.evaluate import EvalData
from stratagem.data.train import TrainData
from stratagem.errors import DataError
from stratagem.runtime.rank_view import RankView

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.strategies.prepared import Prepared


class EpochLoader:
    """One epoch of training per iteration, in the same order on any number of ranks.

    Attributes:
        epoch: index of the epoch that the next iteration runs; set it to go on where a run stopped.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        collectives: Collectives,
        mover: Callable[[Iterable[Any]], Iterable[Any]],
        seed: int,
        distributed_sampler: bool,
    ) -> None:
        self.epoch = 0
        self._mover = mover
        self._data = TrainData(
            loader, collectives=collectives, seed=seed, distributed_sampler=distributed_sampler
        )

    def __iter__(self) -> Iterator[Any]:
        batches = self._data.epoch(self.epoch)
        self.epoch += 1
        return iter(self._mover(batches))

    def __len__(self) -> int:
        if self._data.num_batches is None:
            raise TypeError("this loader doesn't know how many batches it has")
        return self._data.num_batches


class EvalLoader:
    """All samples once per iteration, over all ranks together and in the data's own order.

    Ranks may have different numbers of samples, and of batches: add up sums and counts over ranks, not
    means (docs/guides/data.md).

    Attributes:
        repeats: whether `pairs` gives some rank batches that don't count; True where that isn't known.
            Only under a strategy whose forward is a collective.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        collectives: Collectives,
        mover: Callable[[Iterable[Any]], Iterable[Any]],
        distributed_sampler: bool,
        equal_batches: bool,
    ) -> None:
        self._mover = mover
        self._data = EvalData(
            loader,
            collectives=collectives,
            distributed_sampler=distributed_sampler,
            equal_batches=equal_batches,
        )
        self.repeats = self._data.repeats

    def __iter__(self) -> Iterator[Any]:
        if self.repeats:
            raise DataError(
                "ranks may have different numbers of batches, and this strategy's forward needs all ranks: iterate "
                "over `for batch, counts in loader.pairs()`, run the forward each time, and leave out the result "
                "where `counts` is False"
            )
        return (batch for batch, _ in self.pairs())

    def pairs(self) -> Iterator[tuple[Any, bool]]:
        """Yield (batch, counts), equally often on every rank where the strategy's forward is a collective.

        A batch that doesn't count is there only so that this rank takes part in the forward of the
        others. Every rank must iterate to the end.
        """
        return iter(self._mover(self._data))

    def __len__(self) -> int:
        if self._data.num_batches is None:
            raise TypeError("this loader doesn't know how many batches it has")
        return self._data.num_batches


class LoaderView(RankView):
    """A `RankView` that shares loaders among the ranks."""

    _prepared: list[Prepared]

    @overload
    def dataloader(
        self,
        loader: Iterable[Any],
        *,
        evaluation: Literal[False] = False,
        use_distributed_sampler: bool = True,
    ) -> EpochLoader: ...

    @overload
    def dataloader(
        self, loader: Iterable[Any], *, evaluation: Literal[True], use_distributed_sampler: bool = True
    ) -> EvalLoader: ...

    def dataloader(
        self, loader: Iterable[Any], *, evaluation: bool = False, use_distributed_sampler: bool = True
    ) -> EpochLoader | EvalLoader:
        """Return `loader` shared among ranks and on the device: docs/guides/data.md. Collective.

        Args:
            loader: a DataLoader, or any iterable of batches.
            evaluation: each sample comes once over all ranks, in the data's own order. Otherwise ranks
                have equally many batches, in the order that the loader says.
            use_distributed_sampler: whether to share out; False leaves every loader as it is.

        Raises:
            DataError: several loaders were given, or one without a batch.
        """
        session = self.session
        data = session.collectives.data
        mover = self._prepared[-1].dataloader if self._prepared else partial(moved, device=session.device)
        if evaluation:
            features = session.run.capabilities.features
            return EvalLoader(loader, data, mover, use_distributed_sampler, "collective_forward" in features)
        return EpochLoader(loader, data, mover, session.run.config.seed or 0, use_distributed_sampler)
