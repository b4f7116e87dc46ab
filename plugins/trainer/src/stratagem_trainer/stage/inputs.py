"""What a call of the trainer means where it leaves something out, or says "best"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stratagem_launch import SlurmJob

from stratagem.errors import CheckpointError, ConfigError, UsageError
from stratagem.sdk.selection import path_text
from stratagem_trainer.data.data_module import DataModule
from stratagem_trainer.saving.find_checkpoint import AUTO

if TYPE_CHECKING:
    from stratagem_trainer.view import TrainerView


def split_loaders_and_datamodule(
    stage: str, loader: Any, val_loader: Any, datamodule: Any
) -> tuple[Any, Any]:
    """Return the loaders and the data module; the latter may be passed in the place of the former.

    Raises:
        ConfigError: both are given.
    """
    if isinstance(loader, DataModule):
        loader, datamodule = None, loader
    if datamodule is not None and (loader is not None or val_loader is not None):
        raise ConfigError(f"{stage} got loaders and a datamodule, which has loaders of its own: pass one")
    if datamodule is not None and not isinstance(datamodule, DataModule) and not callable(datamodule):
        raise ConfigError(
            f"datamodule is a {type(datamodule).__name__}: derive it from stratagem.DataModule, or pass a function "
            "that makes one"
        )
    return loader, datamodule


def last_module(given: Any, stage: str) -> Any:
    """Return the module of the last fit.

    Raises:
        UsageError: there was none.
    """
    if given is None:
        raise UsageError(f"{stage} got no model, and this trainer has fitted none yet: pass one")
    return given


def best_where_there_is_one(trainer: TrainerView, ckpt_path: Any) -> Any:
    """Return which checkpoint an evaluation without a model takes its weights from."""
    best: Any = trainer.checkpoint_callback
    return "best" if ckpt_path is None and best is not None and best.best_model_path else ckpt_path


def chosen_checkpoint(
    trainer: TrainerView, stage: str, ckpt_path: str | os.PathLike[str] | None
) -> str | None:
    """Return the path that `ckpt_path` names: itself, or what "auto", "best", "last" and "hpc" mean.

    Raises:
        CheckpointError: the fit before left no such checkpoint.
    """
    if ckpt_path is None:
        return None
    name = path_text("ckpt_path", ckpt_path)
    if name == "hpc":
        raise CheckpointError(
            "ckpt_path='hpc' isn't needed here: a fit whose Slurm job is started again goes on from its newest "
            "checkpoint by itself; elsewhere ckpt_path='auto' goes on from the newest one in run_dir"
        )
    if name == AUTO:
        if stage != "fit" or (trainer.config.run_dir is None and SlurmJob.of(os.environ) is None):
            raise CheckpointError(
                f"{stage} got ckpt_path='auto', which goes on from the newest checkpoint in a fit's run_dir: "
                + ("give one (--run-dir)" if stage == "fit" else "name a checkpoint's folder")
            )
        return AUTO
    if name not in ("best", "last"):
        return name
    callback: Any = trainer.checkpoint_callback
    if callback is None:
        raise CheckpointError(
            f"{stage} got ckpt_path={name!r}, and this trainer keeps no checkpoints: give a ModelCheckpoint, or a "
            "checkpoint's folder"
        )
    path: str = callback.best_model_path if name == "best" else callback.last_model_path
    if not path:
        raise CheckpointError(
            f"{stage} got ckpt_path={name!r}, and no fit of this trainer has written such a checkpoint: fit first, "
            "or pass a checkpoint's folder"
        )
    return path
