"""The loaders of an evaluation, read one after the other or side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader

from stratagem.errors import DataError
from stratagem.sdk.loops import EvalData
from stratagem_trainer.data.combined_loader import (
    CombinedLoader,
    as_combined,
    combined_length,
    filled,
    side_by_side,
)

if TYPE_CHECKING:
    from stratagem import Collectives, Runtime
    from stratagem_trainer.settings import TrainerSettings


class EvalLoader(Protocol):
    """A loader of an evaluation. `stratagem.sdk.loops.EvalData` implements it."""

    batch_size: int | None
    num_batches: int | None
    description: str

    def __iter__(self) -> Iterator[tuple[Any, bool]]: ...

    def sizes(self, parts: list[list[Any]]) -> list[list[int]] | None:
        """Return the number of samples in each batch that counted, one list per rank."""


def eval_loaders(
    runtime: Runtime, settings: TrainerSettings, loader: Any, stage: str, seed: int = 0
) -> list[EvalLoader]:
    """Return the loaders that an evaluation reads. Collective.

    Args:
        runtime: an entered runtime.
        settings: the trainer's settings.
        loader: a loader, several in a collection, or a `CombinedLoader`.
        stage: "validate", "test" or "predict".
        seed: for random orders.

    Raises:
        DataError: a loader can't be read, or a prediction would read several side by side.
    """
    combined = as_combined(loader, "sequential")
    # Side by side, ranks whose shares have different lengths would restart a loader at different batches.
    in_turn = combined is None or combined.mode == "sequential"

    def of_one(one: Any) -> EvalData:
        ranks, shared, is_shared = runtime.collectives.data, one, settings.use_distributed_sampler
        if is_shared and (in_turn or ranks.world_size == 1):
            shared, is_shared = settings.policy.evaluation_loader(one, stage, ranks, seed)
        return (EvalData if shared is one else OwnOrder)(
            shared,
            collectives=ranks,
            distributed_sampler=is_shared,
            equal_batches="collective_forward" in runtime.session.run.capabilities.features,
        )

    if combined is None:
        return [of_one(loader)]
    parts = [of_one(each) for each in combined.flattened]
    if not parts:
        raise DataError(f"{stage} got an empty {type(loader).__name__} of loaders: give at least one")
    if combined.mode == "sequential":
        return list(parts)
    if stage == "predict":
        raise DataError(
            f"predict got a CombinedLoader of mode {combined.mode!r}, but it returns predictions loader by loader: "
            "use the mode 'sequential', or a list of loaders"
        )
    return [SideBySide(combined, parts)]


class OwnOrder(EvalData):
    """Evaluation batches of a user's sampler. Ranks take turns at the indices that it draws, each index once."""

    def __init__(self, loader: DataLoader[Any], *, collectives: Collectives, **how: Any) -> None:
        super().__init__(loader, collectives=collectives, **how)
        sampler: Any = loader.sampler
        self.set_epoch = sampler.set_epoch
        self._length = len(sampler.sampler)
        self.description = (
            f"{self._length:,} samples as a {type(sampler.sampler).__name__} draws them over "
            f"{collectives.world_size} ranks, each once"
        )

    def sizes(self, parts: list[list[Any]]) -> list[list[int]] | None:
        """Return the number of samples in each batch that counted, one list per rank."""
        size, count = self.batch_size or 1, len(parts)
        shares = [len(range(rank, self._length, count)) for rank in range(count)]
        batches = [[min(size, share - first) for first in range(0, share, size)] for share in shares]
        # A limit on the number of batches drops the last ones.
        return [own[: len(part)] for own, part in zip(batches, parts)]


class SideBySide:
    """Loaders of an evaluation whose batches are read together.

    Args:
        combined: has the mode and the collection.
        parts: this rank's share of each loader.
    """

    def __init__(self, combined: CombinedLoader, parts: list[EvalData]) -> None:
        self._combined, self._parts = combined, parts
        self.batch_size = parts[0].batch_size
        self.num_batches = combined_length([part.num_batches for part in parts], combined.mode)
        self.description = f"{combined.mode} of " + "; ".join(part.description for part in parts)

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        for pairs in side_by_side([partial(iter, part) for part in self._parts], self._combined.mode):
            batches = [None if pair is None else pair[0] for pair in pairs]
            counts = all(pair is None or pair[1] for pair in pairs)
            yield filled(self._combined.iterables, iter(batches)), counts

    def sizes(self, parts: list[list[Any]]) -> list[list[int]] | None:
        """Return None. Only predictions need sizes, and they aren't made side by side."""
        return None
