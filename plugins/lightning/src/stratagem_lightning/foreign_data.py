"""Adapts data modules that derive from Lightning's own class, for example in a library."""

from __future__ import annotations

from typing import Any

from stratagem_trainer.data.data_module import DataModule
from stratagem_trainer.data.transfer_hooks import NAMES as TRANSFERS
from stratagem_trainer.module.hyperparameters import Hyperparameters

from stratagem_lightning.datamodule import LightningDataModule
from stratagem_lightning.lightning_private import logs_hyperparameters

_ROOTS = ("lightning.", "pytorch_lightning.")


def adapted(data: Any) -> Any:
    """Return an adapter if `data` is an object of Lightning's class; otherwise `data`."""
    kinds = () if isinstance(data, (type, DataModule)) else type(data).__mro__
    is_lightnings = any(
        each.__name__ == "LightningDataModule" and each.__module__.startswith(_ROOTS) for each in kinds
    )
    return ForeignData(data) if is_lightnings else data


class ForeignData(LightningDataModule):
    """Calls the methods of a data module that derives from Lightning's own class.

    Args:
        inner: that data module.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        # The trainer calls only methods that are overridden. One in `vars(self)` counts as such.
        for name in (*TRANSFERS, "prepare_data"):
            if self._is_overridden(name):
                vars(self)[name] = getattr(inner, name)
        if inner.hparams:
            self._hparams = Hyperparameters(dict(inner.hparams))
            self._hparams_initial = Hyperparameters(dict(inner.hparams_initial))
            self._logs_hparams = logs_hyperparameters(inner)

    @property
    def prepare_data_per_node(self) -> bool:  # type: ignore[override]  # the base has an attribute
        """The data module's value."""
        return bool(self.inner.prepare_data_per_node)

    @property
    def _trainer(self) -> Any:
        return self.inner.trainer

    @_trainer.setter
    def _trainer(self, trainer: Any) -> None:
        self.inner.trainer = trainer

    def setup(self, stage: str) -> None:
        self.inner.setup(stage)

    def teardown(self, stage: str) -> None:
        self.inner.teardown(stage)

    def on_exception(self, error: BaseException) -> None:
        self.inner.on_exception(error)

    def train_dataloader(self) -> Any:
        return self._loader("train_dataloader")

    def val_dataloader(self) -> Any:
        return self._loader("val_dataloader")

    def test_dataloader(self) -> Any:
        return self._loader("test_dataloader")

    def predict_dataloader(self) -> Any:
        return self._loader("predict_dataloader")

    def state_dict(self) -> dict[str, Any]:
        return dict(self.inner.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    def _loader(self, name: str) -> Any:
        return getattr(self.inner, name)() if self._is_overridden(name) else None

    def _is_overridden(self, name: str) -> bool:
        if name in vars(self.inner):
            return True
        defined_in = getattr(getattr(type(self.inner), name), "__module__", "")
        return not defined_in.startswith(_ROOTS)
