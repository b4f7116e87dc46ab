"""Where metrics go: files, services, or a `Logger` of one's own; names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_trainer.loggers.base import Logger, Row
    from stratagem_trainer.loggers.comet import CometLogger
    from stratagem_trainer.loggers.csv import CSVLogger
    from stratagem_trainer.loggers.mlflow import MLFlowLogger
    from stratagem_trainer.loggers.tensorboard import TensorBoardLogger
    from stratagem_trainer.loggers.wandb import WandbLogger

__all__ = ["CSVLogger", "CometLogger", "Logger", "MLFlowLogger", "Row", "TensorBoardLogger", "WandbLogger"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": "Logger Row",
        ".comet": "CometLogger",
        ".csv": "CSVLogger",
        ".mlflow": "MLFlowLogger",
        ".tensorboard": "TensorBoardLogger",
        ".wandb": "WandbLogger",
    },
)
