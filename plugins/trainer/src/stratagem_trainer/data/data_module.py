"""`DataModule`: download, split and load data, independently of the module that is trained with them."""

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
    """Data for `fit`, `validate`, `test` and `predict`, passed as `datamodule`.

    Override the methods that you need. Each worker has its own object, and runs all methods but `prepare_data`. What
    a worker keeps in it doesn't come back to the launching process, except what `state_dict` puts into checkpoints.
    Its hooks that move batches replace the module's. `save_hyperparameters` works as in a module.
    """

    prepare_data_per_node: bool = True
    """Whether `prepare_data` is called on each node. False: on the first node only, for a shared file system."""

    _trainer: TrainerView | None = None

    @property
    def trainer(self) -> TrainerView:
        """The trainer that is using this data module.

        Raises:
            StratagemError: no trainer is using it.
        """
        if self._trainer is None:
            raise StratagemError(f"{type(self).__qualname__} isn't used by a trainer now")
        return self._trainer

    def prepare_data(self) -> None:
        """Download the data. Called once per node, before `setup`. Don't keep anything in the object here."""

    def setup(self, stage: str) -> None:
        """Set up the data. Called on every rank before the loaders are made, with the name of the stage."""

    def teardown(self, stage: str) -> None:
        """Clean up. Called on every rank at the end of a stage, unless an error ended it."""

    def on_exception(self, error: BaseException) -> None:
        """Clean up after an error. Don't call collectives: ranks may be at different points."""

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
        """Return the state to save in checkpoints, from rank 0. It may hold what `Checkpoint.state` may hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Called on every rank of a resumed run, before its loaders are made."""

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: str | os.PathLike[str], allowed: Iterable[Any] = (), **overrides: Any
    ) -> Self:
        """Construct a data module with the hyperparameters and the state in a checkpoint.

        Args:
            checkpoint_path: of a fit with a data module: a folder, or an fsspec URL.
            allowed: classes and functions that hyperparameters may name; see `Module.load_from_checkpoint`.
            overrides: arguments of the constructor that replace those in the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, lacks a data module, or names a forbidden class.
            ConfigError: an argument of the constructor is missing or unknown.
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
        """Return a data module with loaders over datasets. Training data are shuffled.

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
