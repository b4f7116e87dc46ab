"""`LightningDataModule`: Stratagem's `DataModule` under Lightning's name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stratagem_trainer.data.data_module import DataModule

from stratagem.errors import ConfigError
from stratagem_lightning.ckpt_files import folder_of

if TYPE_CHECKING:
    from typing_extensions import Self


class LightningDataModule(DataModule):
    """Data that are separate from the module which they train: docs/guides/data.md."""

    uncalled_hooks = "warn"
    """As in `LightningModule`."""
    name: str | None = None
    """Not used here; for code that reads it."""

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's parameters
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Return a data module. Its constructor gets the checkpoint's hyperparameters and `kwargs`."""
        if map_location is not None or hparams_file is not None:
            raise ConfigError(
                "a data module's load_from_checkpoint takes no map_location and no hparams_file: pass "
                "hyperparameters as arguments"
            )
        return super().load_from_checkpoint(folder_of(checkpoint_path), **kwargs)
