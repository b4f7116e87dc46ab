"""`LightningDataModule`: Stratagem's `DataModule` under Lightning's name."""

from __future__ import annotations

from stratagem_trainer.data.data_module import DataModule


class LightningDataModule(DataModule):
    """Data apart from the module that they train: docs/guides/data.md."""

    name: str | None = None
    """For whoever reads it."""
