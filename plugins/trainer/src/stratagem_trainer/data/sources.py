"""`LoaderSource`: get a stage's loaders from the call, from a `DataModule`, or from the module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError, DataError
from stratagem_trainer.data.data_module import DataModule
from stratagem_trainer.data.transfer_hooks import NAMES as TRANSFERS
from stratagem_trainer.module.hook_names import refuse_uncalled_of_data
from stratagem_trainer.module.module import Module
from stratagem_trainer.stage.hooks import overrides

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.view import TrainerView

_METHODS = {
    "fit": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
"""Stage → name of the method that returns its loaders."""


@dataclass(frozen=True)
class LoaderSource:
    """The sources of a stage's loaders in one worker."""

    module: Module
    datamodule: DataModule | None
    loader: Any = None
    """The loader or loaders that were passed for the stage."""
    val_loader: Any = None
    """The loader or loaders that were passed for a fit's validation."""

    def of(self, stage: str) -> Any:
        """Return the loaders of a stage. Unless they were passed, they are made by each call.

        Raises:
            DataError: there are none.
        """
        loader = self.loader if self.loader is not None else self._own(stage)
        if loader is None:
            passed = "train_dataloaders" if stage == "fit" else "dataloaders"
            batches = "training batches" if stage == "fit" else "batches"
            raise DataError(f"{stage} needs {batches}: pass {passed}, or define {_METHODS[stage]}")
        return loader

    def of_validation(self) -> Any:
        """Return the loaders of a fit's validation; None if there is no validation.

        Raises:
            ConfigError: loaders were passed, but the module has no validation_step.
        """
        has_step = overrides(self.module, "validation_step", Module)
        if self.val_loader is not None and not has_step:
            raise ConfigError(
                f"val_dataloaders were passed, but {type(self.module).__qualname__} has no validation_step"
            )
        if self.val_loader is not None:
            return self.val_loader
        return self._own("validate") if has_step else None

    def _own(self, stage: str) -> Any:
        name = _METHODS[stage]
        loader = getattr(self.datamodule, name)() if self.datamodule is not None else None
        return loader if loader is not None else getattr(self.module, name)()


def make_datamodule(trainer: TrainerView, given: Any) -> DataModule | None:
    """Return the stage's data module. If a callable was passed, call it.

    Raises:
        ConfigError: it isn't a data module, or it defines a hook that would never be called.
    """
    if given is None:
        return None
    data = given if not callable(given) or isinstance(given, DataModule) else given()
    if not isinstance(data, DataModule):
        raise ConfigError(f"datamodule is a {type(data).__name__}: derive it from stratagem.DataModule")
    refuse_uncalled_of_data(data)
    data._trainer = trainer
    trainer.datamodule = data
    return data


def prepare_data(runtime: Runtime, datamodule: DataModule | None) -> None:
    """Call a data module's `prepare_data`, once per node or once per run. Collective."""
    if datamodule is None or not overrides(datamodule, "prepare_data", DataModule):
        return
    if (runtime.local_rank if datamodule.prepare_data_per_node else runtime.rank) == 0:
        datamodule.prepare_data()
    runtime.barrier()


def transfer_hooks(module: Module, datamodule: DataModule | None) -> dict[str, Callable[..., Any]]:
    """Return the batch-transfer hooks that the data module overrides, by name.

    Raises:
        ConfigError: the module overrides one of them, too.
    """
    if datamodule is None:
        return {}
    names = [name for name in TRANSFERS if overrides(datamodule, name, DataModule)]
    for name in names:
        if overrides(module, name, Module):
            raise ConfigError(
                f"{type(datamodule).__qualname__} and {type(module).__qualname__} both define {name}, which is "
                "called once for each batch: define it in one of them"
            )
    return {name: getattr(datamodule, name) for name in names}
