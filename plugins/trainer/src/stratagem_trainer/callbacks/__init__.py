"""Code that runs at named moments of a run; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.accumulation import GradientAccumulationScheduler
    from stratagem_trainer.callbacks.after_error import OnExceptionCheckpoint
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.callbacks.device_stats import DeviceStatsMonitor
    from stratagem_trainer.callbacks.early_stopping import EarlyStopping
    from stratagem_trainer.callbacks.finders import BatchSizeFinder, LearningRateFinder
    from stratagem_trainer.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
    from stratagem_trainer.callbacks.lambda_callback import LambdaCallback
    from stratagem_trainer.callbacks.learning_rate import LearningRateMonitor
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.callbacks.model_summary import ModelSummary, RichModelSummary
    from stratagem_trainer.callbacks.prediction_writer import BasePredictionWriter
    from stratagem_trainer.callbacks.progress import ProgressBar, RichProgressBar, TQDMProgressBar
    from stratagem_trainer.callbacks.pruning import ModelPruning
    from stratagem_trainer.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from stratagem_trainer.callbacks.throughput import ThroughputMonitor
    from stratagem_trainer.callbacks.timer import Timer
    from stratagem_trainer.callbacks.training_curve import TrainingCurve
    from stratagem_trainer.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

_WHERE = {
    "BackboneFinetuning": "finetuning",
    "BaseFinetuning": "finetuning",
    "BasePredictionWriter": "prediction_writer",
    "BatchSizeFinder": "finders",
    "Callback": "base",
    "DeviceStatsMonitor": "device_stats",
    "EMAWeightAveraging": "weight_averaging",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "accumulation",
    "LambdaCallback": "lambda_callback",
    "LearningRateFinder": "finders",
    "LearningRateMonitor": "learning_rate",
    "ModelCheckpoint": "model_checkpoint",
    "ModelPruning": "pruning",
    "ModelSummary": "model_summary",
    "OnExceptionCheckpoint": "after_error",
    "ProgressBar": "progress",
    "RichModelSummary": "model_summary",
    "RichProgressBar": "progress",
    "StochasticWeightAveraging": "stochastic_weight_averaging",
    "TQDMProgressBar": "progress",
    "ThroughputMonitor": "throughput",
    "Timer": "timer",
    "TrainingCurve": "training_curve",
    "WeightAveraging": "weight_averaging",
}

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "Timer",
    "TrainingCurve",
    "WeightAveraging",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
