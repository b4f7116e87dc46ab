"""Callbacks with Lightning's defaults, folders and attributes."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Literal

import stratagem_trainer.callbacks
import torch
from stratagem_trainer.callbacks.checkpoint_decision import Decision
from stratagem_trainer.callbacks.checkpoint_name import CheckpointName
from stratagem_trainer.callbacks.last_link import link

from stratagem.errors import ConfigError
from stratagem_lightning.ckpt_files import ENDING, FOLDER, facts, remove_file, wants_files, write_file

_URL = "://"


class ModelCheckpoint(stratagem_trainer.callbacks.ModelCheckpoint):
    """Saves checkpoints during a fit: docs/guides/callbacks.md.

    A relative `dirpath` is relative to the current folder. The newest checkpoint is kept as `last` unless
    `save_last=False`, because a fit's `save_checkpoint` copies it later.

    Args:
        as_file: whether to write each checkpoint also as a `.ckpt` file, which `torch.load` and Lightning can read.
            Its folder is next to it, and has the same name with `.folder`. STRATAGEM_CKPT_FILES=1 in the environment
            does the same.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: Literal["min", "max"] = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        as_file: bool = False,
    ) -> None:
        self.as_file = wants_files(as_file)
        if self.as_file:
            self.ending = ENDING + FOLDER
        self.filename, self.mode, self.auto_insert_metric_name = filename, mode, auto_insert_metric_name
        super().__init__(
            dirpath=dirpath,
            filename=filename,
            monitor=monitor,
            verbose=verbose,
            save_last=True if save_last is None else save_last,
            save_top_k=save_top_k,
            save_on_exception=save_on_exception,
            save_weights_only=save_weights_only,
            mode=mode,
            auto_insert_metric_name=auto_insert_metric_name,
            every_n_train_steps=every_n_train_steps,
            train_time_interval=train_time_interval,
            every_n_epochs=every_n_epochs,
            save_on_train_epoch_end=save_on_train_epoch_end,
            enable_version_counter=enable_version_counter,
        )

    ranks_last, ending = False, ".ckpt"
    # Lightning writes no such checkpoint, and a program that lists the folder must not find it.
    hides_last = True
    _used_dirpath: str | None = None

    @property
    def dirpath(self) -> str | None:
        """The folder of the checkpoints. If none was given, the run folder, once a fit has begun."""
        return self._used_dirpath if self._given_dirpath is None else self._given_dirpath

    @dirpath.setter
    def dirpath(self, value: str | os.PathLike[str] | None) -> None:
        self._given_dirpath = None if value is None else _absolute(value)

    @property
    def given_dirpath(self) -> str | None:
        """The folder as given."""
        return self._given_dirpath

    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        super().on_start(trainer, module, stage)
        if stage == "fit":
            self._used_dirpath = self.checkpoint_folder(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "dirpath": self._used_dirpath}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._used_dirpath = state.get("dirpath")

    @property
    def FILE_EXTENSION(self) -> str:  # noqa: N802 - Lightning's name
        """The suffix of checkpoint names."""
        return ENDING

    def after_save(self, trainer: Any, decision: Decision) -> None:
        if not self.as_file or not trainer.is_main:
            return
        if decision.after.folder and _URL in decision.after.folder:
            raise ConfigError(
                f"{decision.after.folder} is a URL: as_file=True is for folders of this machine"
            )
        position, last = facts(trainer), decision.after.last_path
        for folder in decision.save:
            trainer.when_saved(partial(write_file, folder.removesuffix(FOLDER), position))
        if decision.link:
            files = (path.removesuffix(FOLDER) for path in (decision.after.newest, last))
            trainer.when_saved(partial(link, *files))

    def after_removal(self, trainer: Any, path: str) -> None:
        if self.as_file and trainer.is_main:
            remove_file(path)

    def name_last(self, trainer: Any, path: str, save: Any) -> None:
        super().name_last(trainer, path, save)
        if self.as_file and trainer.is_main:
            remove_file(
                f"{self.checkpoint_folder(trainer)}/last{self.ending}"
            )  # it is of an earlier checkpoint

    @property
    def best_model_path(self) -> str:
        """The best checkpoint; the newest one if nothing is monitored; "" before the first."""
        return super().best_model_path.removesuffix(FOLDER)

    @property
    def last_model_path(self) -> str:
        """The path of `last`; "" before the first checkpoint, or without `save_last`."""
        return super().last_model_path.removesuffix(FOLDER)

    @property
    def CHECKPOINT_NAME_LAST(self) -> str:  # noqa: N802 - Lightning's name
        """The name of the newest checkpoint. It can't be changed."""
        return "last"

    @property
    def best_model_score(self) -> torch.Tensor | None:  # type: ignore[override]  # a tensor, as in Lightning
        """The monitored metric of `best_model_path`."""
        return _tensor(super().best_model_score)

    @property
    def current_score(self) -> torch.Tensor | None:  # type: ignore[override]  # a tensor, as in Lightning
        """The monitored metric at the latest checkpoint."""
        return _tensor(super().current_score)

    @property
    def best_k_models(self) -> dict[str, torch.Tensor]:  # type: ignore[override]  # tensors, as in Lightning
        """Path → metric of the top k, best first; empty if nothing is monitored."""
        found = super().best_k_models if self.monitor is not None else {}
        scored = {path.removesuffix(FOLDER): score for path, score in found.items()}
        return {path: torch.tensor(math.nan if score is None else score) for path, score in scored.items()}

    @property
    def kth_best_model_path(self) -> str:
        """The worst of the top k; "" while there are fewer than k."""
        known = list(self.best_k_models)
        return known[-1] if known and self.save_top_k in (-1, len(known)) else ""

    @property
    def kth_value(self) -> torch.Tensor:
        """The metric of `kth_best_model_path`; before there is one, inf for mode "min" and -inf for mode "max"."""
        worst = math.inf if self.mode == "min" else -math.inf
        return self.best_k_models.get(self.kth_best_model_path, torch.tensor(worst))

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None
    ) -> str:
        """Return the name of a checkpoint with these metrics, including `dirpath` if it is known."""
        values = {name: float(value) for name, value in metrics.items() if name not in ("epoch", "step")}
        template = CheckpointName(filename or self.filename or "{epoch}-{step}", self.auto_insert_metric_name)
        name = template.fill(int(metrics.get("epoch", 0)), int(metrics.get("step", 0)), values)
        name += ("" if ver is None else f"-v{ver}") + ENDING
        return name if self.dirpath is None else f"{self.dirpath}/{name}"


class EarlyStopping(stratagem_trainer.callbacks.EarlyStopping):
    """Ends a fit when a metric stops improving: docs/guides/callbacks.md."""

    _best: float | None = None
    _stopped_in: int | None = None

    @property  # type: ignore[override]  # the base has an attribute
    def best_score(self) -> torch.Tensor:
        """The best value so far; before the first, inf for mode "min" and -inf for mode "max"."""
        worst = math.inf if self.mode == "min" else -math.inf
        return torch.tensor(worst if self._best is None else self._best)

    @best_score.setter
    def best_score(self, value: Any) -> None:
        self._best = None if value is None else float(value)

    @property
    def stopped_epoch(self) -> int:
        """The epoch in which the callback stopped the fit, from 0; also 0 if it didn't stop it."""
        return self._stopped_in or 0

    @stopped_epoch.setter
    def stopped_epoch(self, value: int | None) -> None:
        self._stopped_in = value

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_score": self._best, "stopped_epoch": self._stopped_in}


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if _URL in os.fspath(path) else os.path.abspath(path)


def _tensor(value: float | None) -> torch.Tensor | None:
    return None if value is None else torch.tensor(value)


class WriteInterval(str, Enum):
    """When predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether predictions are written after each batch."""
        return self is not WriteInterval.EPOCH

    @property
    def on_epoch(self) -> bool:
        """Whether predictions are written at the end."""
        return self is not WriteInterval.BATCH


class BasePredictionWriter(stratagem_trainer.callbacks.BasePredictionWriter):
    """Base class of callbacks that write predictions: docs/guides/callbacks.md."""

    @property
    def interval(self) -> WriteInterval:
        """When predictions are written."""
        return WriteInterval(self.write_interval)

    def _indices_to_give(self, indices: list[Any]) -> list[Any]:
        return indices  # a list for each loader, even if there is only one


__all__ = ["BasePredictionWriter", "EarlyStopping", "ModelCheckpoint", "WriteInterval"]
