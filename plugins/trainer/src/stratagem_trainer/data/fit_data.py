"""`FitData`: the loaders of a fit. `reload_dataloaders_every_n_epochs` makes them again."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader, RandomSampler

from stratagem.errors import DataError
from stratagem.sdk.loops import in_order
from stratagem_trainer.data.combined_loader import CombinedLoader, as_combined, filled
from stratagem_trainer.data.evaluation import EvalLoader, eval_loaders
from stratagem_trainer.data.global_batch import last_share, micro_batches, whole_steps
from stratagem_trainer.data.training import AnyTrainData, train_data
from stratagem_trainer.settings import train_batches

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.settings import TrainerSettings


class Source(Protocol):
    """Returns the loaders of a fit."""

    def of(self, stage: str) -> Any:
        """Return the training loaders, for the stage "fit"."""

    def of_validation(self) -> Any:
        """Return the validation loaders; None if there are none."""


class FitData:
    """Training and validation batches of this rank. Collective to construct.

    Args:
        runtime: an entered runtime.
        settings: the trainer's settings.
        source: returns the loaders.
        epoch: the epoch to make the loaders for.
        seed: for random orders.

    Attributes:
        train: training batches.
        val: batches of each validation loader; empty if there are none.
        train_loader: the user's training loader or loaders.
        val_loader: the user's validation loader or loaders.
        micro_batches: number per optimizer step.
        last_share: size of an epoch's last micro-batch relative to the others; 1 without `global_batch_size`.

    Raises:
        DataError, ConfigError: there are no training batches, or loaders that can't be used.
    """

    train: AnyTrainData
    val: list[EvalLoader]

    def __init__(
        self, runtime: Runtime, settings: TrainerSettings, source: Source, epoch: int = 0, seed: int = 0
    ) -> None:
        self._seed = seed
        self._runtime, self._settings, self._source = runtime, settings, source
        self._make(epoch)

    @property
    def num_train_batches(self) -> int | None:
        """Number of micro-batches per epoch that each rank trains on; None if unknown."""
        count = train_batches(self.train.num_batches, self._settings)
        if self._settings.global_batch_size is None:
            return count
        return whole_steps(count, self.micro_batches, self.train_loader)

    @property
    def val_description(self) -> str:
        """Description of the validation loaders, for the printed plan."""
        return "; ".join(data.description for data in self.val) or "none"

    def made_again(self, epoch: int) -> bool:
        """Make the loaders again if `reload_dataloaders_every_n_epochs` says so for this epoch. Collective.

        Returns:
            Whether they were made again.
        """
        every = self._settings.reload_dataloaders_every_n_epochs
        if not every or epoch // every == self._epoch // every:
            return False
        self._make(epoch)
        return True

    def _make(self, epoch: int) -> None:
        settings, source = self._settings, self._source
        self._epoch = epoch
        self.train_loader, self.val_loader = source.of("fit"), source.of_validation()
        if settings.limit("validate") == 0 or self.val_loader in ([], ()):
            self.val_loader = None
        train, val = self.train_loader, self.val_loader
        if settings.overfit_batches:
            train, val = _unshuffled(train, "training"), _unshuffled(val, "validation")
        self.train = train_data(self._runtime, settings, train, self._seed)
        self.micro_batches = micro_batches(settings, self.train, self._runtime.collectives.data.world_size)
        self.last_share = last_share(settings, self.train)
        self.val = [] if val is None else eval_loaders(self._runtime, settings, val, "validate", self._seed)


def _unshuffled(loader: Any, what: str) -> Any:
    """Return a loader, or several, that yield the same batches in every epoch."""
    combined = None if loader is None else as_combined(loader, "max_size_cycle")
    if combined is not None:
        ordered = [_unshuffled(each, what) for each in combined.flattened]
        iterables = filled(combined.iterables, iter(ordered))
        return CombinedLoader(iterables, combined.mode) if hasattr(loader, "mode") else iterables
    if not isinstance(loader, DataLoader) or not isinstance(loader.sampler, RandomSampler):
        return loader
    try:
        ordered_loader = in_order(loader)
    except DataError as error:
        raise DataError(f"overfit_batches turns shuffling off: {error}") from error
    warnings.warn(
        f"overfit_batches turns off the shuffling of the {what} loader, so that batches are the same in every "
        "epoch",
        UserWarning,
        stacklevel=2,
    )
    return ordered_loader
