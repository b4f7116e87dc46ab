"""Lightning still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from stratagem_lightning import lightning_private as private


def test_hyperparameters_are_logged_unless_the_data_module_says_otherwise() -> None:
    assert private.logs_hyperparameters(SimpleNamespace())
    assert not private.logs_hyperparameters(SimpleNamespace(_log_hyperparams=False))


@pytest.mark.parametrize("logger", [True, False])
def test_lightning_keeps_what_its_user_said(logger: bool) -> None:
    pytorch = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Data(pytorch.LightningDataModule):  # type: ignore[misc]  # whatever Lightning has
        def __init__(self, size: int) -> None:
            super().__init__()
            self.save_hyperparameters(logger=logger)

    assert private.logs_hyperparameters(Data(3)) is logger
