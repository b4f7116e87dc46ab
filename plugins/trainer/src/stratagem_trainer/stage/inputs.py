"""Resolve the arguments of `Trainer.fit` and the others: omitted ones, and checkpoint names such as "best"."""

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
    """Return the loaders and the data module. A data module may be passed in the place of the loaders.

    Raises:
        ConfigError: both are given.
    """
    if isinstance(loader, DataModule):
        loader, datamodule = None, loader
    if datamodule is not None and (loader is not None or val_loader is not None):
        raise ConfigError(
            f"{stage} got loaders and a datamodule, which has its own loaders: pass one of them"
        )
    if datamodule is not None and not isinstance(datamodule, DataModule) and not callable(datamodule):
        raise ConfigError(
            f"datamodule is a {type(datamodule).__name__}: derive it from stratagem.DataModule, or pass a function "
            "that makes one"
        )
    return loader, datamodule


def last_module(given: Any, stage: str) -> Any:
    """Return the module of the last fit, for a stage that was called without one.

    Raises:
        UsageError: this trainer hasn't fitted a module.
    """
    if given is None:
        raise UsageError(f"{stage} got no model, and this trainer hasn't fitted one yet: pass one")
    return given


def best_where_there_is_one(trainer: TrainerView, ckpt_path: Any) -> Any:
    """Return the checkpoint to evaluate if no model was passed: the best one if a callback has written it."""
    best: Any = trainer.checkpoint_callback
    return "best" if ckpt_path is None and best is not None and best.best_model_path else ckpt_path


def chosen_checkpoint(
    trainer: TrainerView, stage: str, ckpt_path: str | os.PathLike[str] | None
) -> str | None:
    """Return the path of the checkpoint that `ckpt_path` names: a path, or "auto", "best" or "last".

    Raises:
        CheckpointError: there is no such checkpoint, or the name can't be used here.
    """
    if ckpt_path is None:
        return None
    name = path_text("ckpt_path", ckpt_path)
    if name == "hpc":
        raise CheckpointError(
            "ckpt_path='hpc' isn't needed here: a fit whose Slurm job is restarted resumes from its newest "
            "checkpoint automatically; elsewhere ckpt_path='auto' resumes from the newest one in run_dir"
        )
    if name == AUTO:
        if stage != "fit" or (trainer.config.run_dir is None and SlurmJob.of(os.environ) is None):
            raise CheckpointError(
                f"{stage} got ckpt_path='auto', which resumes a fit from the newest checkpoint in its run_dir: "
                + ("set run_dir (--run-dir)" if stage == "fit" else "pass a checkpoint's folder")
            )
        return AUTO
    if name not in ("best", "last"):
        return name
    callback: Any = trainer.checkpoint_callback
    if callback is None:
        raise CheckpointError(
            f"{stage} got ckpt_path={name!r}, and this trainer has no ModelCheckpoint callback: add one, or pass a "
            "checkpoint's folder"
        )
    path: str = callback.best_model_path if name == "best" else callback.last_model_path
    if not path:
        raise CheckpointError(
            f"{stage} got ckpt_path={name!r}, and no fit of this trainer has written such a checkpoint: fit first, "
            "or pass a checkpoint's folder"
        )
    return path
