"""Callbacks: code that a trainer calls while it runs. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.accumulation import GradientAccumulationScheduler
    from stratagem_trainer.callbacks.after_error import OnExceptionCheckpoint
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.callbacks.early_stopping import EarlyStopping
    from stratagem_trainer.callbacks.lambda_callback import LambdaCallback
    from stratagem_trainer.callbacks.learning_rate import LearningRateMonitor
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.callbacks.model_summary import ModelSummary, RichModelSummary
    from stratagem_trainer.callbacks.prediction_writer import BasePredictionWriter
    from stratagem_trainer.callbacks.progress import ProgressBar, RichProgressBar, TQDMProgressBar
    from stratagem_trainer.callbacks.timer import Timer

__all__ = [
    "BasePredictionWriter",
    "Callback",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "Timer",
]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".accumulation": "GradientAccumulationScheduler",
            ".after_error": "OnExceptionCheckpoint",
            ".base": "Callback",
            ".early_stopping": "EarlyStopping",
            ".lambda_callback": "LambdaCallback",
            ".learning_rate": "LearningRateMonitor",
            ".model_checkpoint": "ModelCheckpoint",
            ".model_summary": "ModelSummary RichModelSummary",
            ".prediction_writer": "BasePredictionWriter",
            ".progress": "ProgressBar RichProgressBar TQDMProgressBar",
            ".timer": "Timer",
        },
    )
