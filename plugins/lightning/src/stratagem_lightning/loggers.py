"""Loggers with Lightning's names and defaults, and the default logger of Lightning's trainer."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Union

import stratagem_loggers
import stratagem_trainer.loggers
from stratagem_loggers import CometLogger, WandbLogger
from stratagem_trainer.loggers import Logger

__all__ = [
    "CSVLogger",
    "CometLogger",
    "FabricCSVLogger",
    "FabricTensorBoardLogger",
    "MLFlowLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "default_logger",
]
NAME = "lightning_logs"
Path = Union[str, "os.PathLike[str]"]


class CSVLogger(stratagem_trainer.loggers.CSVLogger):
    """Writes metrics.csv into save_dir/name/version_N."""

    def __init__(
        self,
        save_dir: Path,
        name: str | None = NAME,
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name, version, prefix, flush_logs_every_n_steps)

    @property
    def root_dir(self) -> str:
        """The folder that contains all versions."""
        return os.path.join(self.save_dir or "", self.name or "")


class TensorBoardLogger(stratagem_trainer.loggers.TensorBoardLogger):
    """Writes event files into save_dir/name/version_N."""

    def __init__(
        self,
        save_dir: Path,
        name: str | None = NAME,
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Path | None = None,
        **kwargs: Any,
    ) -> None:
        where = None if sub_dir is None else os.fspath(sub_dir)
        super().__init__(save_dir, name, version, log_graph, default_hp_metric, prefix, where, **kwargs)

    @property
    def _log_graph(self) -> bool:
        return self._logs_graph

    @_log_graph.setter
    def _log_graph(self, value: bool) -> None:
        # Lightning has this private attribute, and programs set it on their trainer's logger.
        self._logs_graph = value

    @property
    def root_dir(self) -> str:
        """The folder that contains all versions."""
        return os.path.join(self.save_dir or "", self.name or "")


class FabricCSVLogger(CSVLogger):
    """The logger with the parameters that it has in `lightning.fabric.loggers`."""

    def __init__(
        self,
        root_dir: Path,
        name: str | None = NAME,
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix, flush_logs_every_n_steps)


class FabricTensorBoardLogger(TensorBoardLogger):
    """The logger with the parameters that it has in `lightning.fabric.loggers`."""

    def __init__(
        self,
        root_dir: Path,
        name: str | None = NAME,
        version: int | str | None = None,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(root_dir, name, version, False, default_hp_metric, prefix, sub_dir, **kwargs)


class MLFlowLogger(stratagem_loggers.MLFlowLogger):
    """Logs to MLflow. The experiment is called "lightning_logs" by default."""

    def __init__(self, experiment_name: str = NAME, *args: Any, **kwargs: Any) -> None:
        super().__init__(experiment_name, *args, **kwargs)


def default_logger(root: Any) -> Logger:
    """Return a logger for root/lightning_logs/version_N: TensorBoard's if it is installed, otherwise a CSV logger."""
    kind = TensorBoardLogger if find_spec("tensorboard") else CSVLogger
    return kind("." if root is None else root, name=NAME)
