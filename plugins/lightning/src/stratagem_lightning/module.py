"""`LightningModule`: Stratagem's `Module` under Lightning's name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_lightning.ckpt_files import folder_of
from stratagem_lightning.in_fabric import InFabric
from stratagem_lightning.missing import in_tensors

if TYPE_CHECKING:
    from typing_extensions import Self


class LightningModule(InFabric):
    """A model with its steps, optimizers and data: docs/guides/modules.md says what each method does."""

    uncalled_hooks = "warn"
    """Allow methods that look like hooks but aren't, with a warning: Lightning accepts them without one."""
    strict_loading: bool = True
    """Whether the tensor names in a checkpoint must be those of the module."""

    _ran_by: Any = None

    def ran_by(self, trainer: Any) -> None:
        """Set the trainer that runs this module."""
        self._ran_by = trainer

    @property
    def trainer(self) -> Any:
        """The trainer that runs this module, or ran it last.

        Raises:
            StratagemError: no trainer has run it.
        """
        return super().trainer if self.has_trainer or self._ran_by is None else self._ran_by

    @property
    def current_epoch(self) -> int:
        """Index of the current epoch; after a fit, the number of finished epochs; 0 before the first fit."""
        return int(self.trainer.current_epoch) if self.has_trainer or self._ran_by else 0

    @property
    def global_step(self) -> int:
        """Number of completed optimizer steps; 0 before a fit."""
        return int(self.trainer.global_step) if self.has_trainer or self._ran_by else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ran_by": None}

    @property
    def on_gpu(self) -> bool:
        """Whether the module's device is a GPU."""
        return self.device.type == "cuda"

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's parameters
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a module with a checkpoint's weights. Its constructor gets the hyperparameters and `kwargs`."""
        if hparams_file is not None:
            raise ConfigError("load_from_checkpoint takes no hparams_file: pass hyperparameters as arguments")
        is_strict = cls.strict_loading if strict is None else strict
        return super().load_from_checkpoint(folder_of(checkpoint_path), map_location, is_strict, **kwargs)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:  # type: ignore[override]  # Lightning's parameters
        """Stack the values of all ranks along a new first dim; a single rank gets `data`, in tensors. Collective."""
        if group is not None:
            raise ConfigError("all_gather takes no group: it gathers from all ranks")
        if self.trainer.world_size == 1:
            return in_tensors(data, self.device)
        return super().all_gather(data, sync_grads)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizers for manual optimization: one, or a list if there are several."""
        if not use_pl_optimizer:
            raise ConfigError(
                "optimizers(use_pl_optimizer=False) isn't here: trainer.optimizers has torch's own"
            )
        return super().optimizers()
