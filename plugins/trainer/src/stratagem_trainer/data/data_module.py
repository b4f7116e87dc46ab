"""`DataModule`: how data are got, split and loaded, apart from the module that they train."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from stratagem.errors import StratagemError
from stratagem_trainer.data.transfer_hooks import TransferHooks
from stratagem_trainer.module.hyperparameters import HyperparametersMixin

if TYPE_CHECKING:
    from typing_extensions import Self

    from stratagem_trainer.view import TrainerView


class DataModule(TransferHooks, HyperparametersMixin):
    """Data for `fit`, `validate`, `test` and `predict`, given as their `datamodule`.

    Override what is needed. Everything but `prepare_data` runs in every worker, which has its own object: what
    a worker keeps in it doesn't come back to the launching process, except what `state_dict` puts into checkpoints.
    Its hooks that move batches replace the module's. `save_hyperparameters` works as in a module.
    """

    prepare_data_per_node: bool = True
    """False: `prepare_data` is called on the first node alone, for a file system that all nodes share."""

    _trainer: TrainerView | None = None

    @property
    def trainer(self) -> TrainerView:
        """The trainer that reads these data.

        Raises:
            StratagemError: none does.
        """
        if self._trainer is None:
            raise StratagemError(f"{type(self).__qualname__} isn't read by a trainer now")
        return self._trainer

    def prepare_data(self) -> None:
        """Once per node, before `setup`: downloads; nothing may be kept in the object."""

    def setup(self, stage: str) -> None:
        """On every rank, before the loaders are made; "fit", "validate", "test" or "predict"."""

    def teardown(self, stage: str) -> None:
        """On every rank at the end of a stage that wasn't ended by an error."""

    def on_exception(self, error: BaseException) -> None:
        """When a stage ends by an error; ranks may be apart: no collectives."""

    # Loaders --------------------------------------------------------------------------------------

    def train_dataloader(self) -> Any:
        """Return training batches: a loader, or several in a list, tuple, dict or `CombinedLoader`."""
        return None

    def val_dataloader(self) -> Any:
        """Return validation batches: a loader, or several."""
        return None

    def test_dataloader(self) -> Any:
        """Return test batches: a loader, or several."""
        return None

    def predict_dataloader(self) -> Any:
        """Return batches to predict: a loader, or several."""
        return None

    # Checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of rank 0's object, as `Checkpoint.state` may hold it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; on every rank, when a run is continued, before its loaders are made."""

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: str | os.PathLike[str], allowed: Iterable[Any] = (), **overrides: Any
    ) -> Self:
        """Return a data module made with what `save_hyperparameters` kept, and with the state in the checkpoint.

        Args:
            checkpoint_path: of a fit with a data module: a folder, or an fsspec URL.
            allowed: classes and functions that hyperparameters may name; see `Module.load_from_checkpoint`.
            overrides: arguments of the constructor, in the place of those in the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, lacks a data module, or names a forbidden class.
            ConfigError: an argument of the constructor is missing, or has an unknown name.
        """
        from stratagem_trainer.saving.load_module import load_data

        return load_data(cls, checkpoint_path, allowed, overrides)

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **kwargs: Any,
    ) -> DataModule:
        """Return a data module over datasets; training data are shuffled.

        Args:
            train_dataset: a dataset, or several in a list or mapping.
            val_dataset: the same for validation.
            test_dataset: the same for test.
            predict_dataset: the same for predict.
            batch_size: of every loader.
            num_workers: of every loader.
            kwargs: for the constructor of a subclass.
        """
        data = cls(**kwargs)
        datasets = {
            "train": train_dataset,
            "val": val_dataset,
            "test": test_dataset,
            "predict": predict_dataset,
        }
        for name, given in datasets.items():
            if given is not None:
                loaders = _Loaders(given, name == "train", batch_size, num_workers)
                setattr(data, f"{name}_dataloader", loaders)
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}


class _Loaders:
    """Makes a loader for each dataset; picklable."""

    def __init__(self, datasets: Any, is_shuffled: bool, batch_size: int, num_workers: int) -> None:
        self.datasets, self.is_shuffled = datasets, is_shuffled
        self.batch_size, self.num_workers = batch_size, num_workers

    def __call__(self) -> Any:
        given = self.datasets
        if isinstance(given, Mapping):
            return {key: self._loader(each) for key, each in given.items()}
        if isinstance(given, Sequence) and all(isinstance(each, Dataset) for each in given):
            return [self._loader(each) for each in given]
        return self._loader(given)

    def _loader(self, dataset: Any) -> Iterable[Any]:
        shuffle = self.is_shuffled and not isinstance(dataset, IterableDataset)
        return DataLoader(dataset, self.batch_size, shuffle=shuffle, num_workers=self.num_workers)
