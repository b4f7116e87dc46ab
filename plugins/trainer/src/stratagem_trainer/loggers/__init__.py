"""Loggers: files, services, or your own `Logger`. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_trainer.loggers.base import Logger, Row
    from stratagem_trainer.loggers.csv import CSVLogger
    from stratagem_trainer.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "Row", "TensorBoardLogger"]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".base": "Logger Row",
            ".csv": "CSVLogger",
            ".tensorboard": "TensorBoardLogger",
        },
    )
