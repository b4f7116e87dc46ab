"""Lightning's loggers, by its names, and the one that its trainer makes by default."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from stratagem_trainer.loggers import (
    CometLogger,
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

__all__ = ["CSVLogger", "CometLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger", "default_logger"]


def default_logger(root: Any) -> Logger:
    """Return a logger into root/lightning_logs/version_N: TensorBoard's where it is installed, or else a CSV file."""
    kind = TensorBoardLogger if find_spec("tensorboard") else CSVLogger
    return kind("." if root is None else root, name="lightning_logs")
