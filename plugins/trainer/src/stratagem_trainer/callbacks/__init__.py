"""Code that runs at named moments of a run; names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".accumulation": "GradientAccumulationScheduler",
        ".after_error": "OnExceptionCheckpoint",
        ".base": "Callback",
        ".device_stats": "DeviceStatsMonitor",
        ".early_stopping": "EarlyStopping",
        ".finders": "BatchSizeFinder LearningRateFinder",
        ".finetuning": "BackboneFinetuning BaseFinetuning",
        ".lambda_callback": "LambdaCallback",
        ".learning_rate": "LearningRateMonitor",
        ".model_checkpoint": "ModelCheckpoint",
        ".model_summary": "ModelSummary RichModelSummary",
        ".prediction_writer": "BasePredictionWriter",
        ".progress": "ProgressBar RichProgressBar TQDMProgressBar",
        ".pruning": "ModelPruning",
        ".stochastic_weight_averaging": "StochasticWeightAveraging",
        ".throughput": "ThroughputMonitor",
        ".timer": "Timer",
        ".training_curve": "TrainingCurve",
        ".weight_averaging": "EMAWeightAveraging WeightAveraging",
    },
)
