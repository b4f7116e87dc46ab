"""Loggers that send a fit's metrics to W&B, MLflow, Comet, trackio or Aim; names are imported at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_loggers.aim import AimLogger
    from stratagem_loggers.comet import CometLogger
    from stratagem_loggers.mlflow import MLFlowLogger
    from stratagem_loggers.trackio import TrackioLogger
    from stratagem_loggers.wandb import WandbLogger

__all__ = ["AimLogger", "CometLogger", "MLFlowLogger", "TrackioLogger", "WandbLogger"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".aim": "AimLogger",
            ".comet": "CometLogger",
            ".mlflow": "MLFlowLogger",
            ".trackio": "TrackioLogger",
            ".wandb": "WandbLogger",
        },
    )
