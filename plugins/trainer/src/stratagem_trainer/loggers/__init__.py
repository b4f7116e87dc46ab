"""Where metrics go: files, services, or a `Logger` of one's own; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_trainer.loggers.base import Logger, Row
    from stratagem_trainer.loggers.comet import CometLogger
    from stratagem_trainer.loggers.csv import CSVLogger
    from stratagem_trainer.loggers.mlflow import MLFlowLogger
    from stratagem_trainer.loggers.tensorboard import TensorBoardLogger
    from stratagem_trainer.loggers.wandb import WandbLogger

_WHERE = {
    "CSVLogger": "csv",
    "CometLogger": "comet",
    "Logger": "base",
    "MLFlowLogger": "mlflow",
    "Row": "base",
    "TensorBoardLogger": "tensorboard",
    "WandbLogger": "wandb",
}

__all__ = ["CSVLogger", "CometLogger", "Logger", "MLFlowLogger", "Row", "TensorBoardLogger", "WandbLogger"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
