"""Callbacks that change weights, find settings, and report on a run; names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_callbacks.device_stats import DeviceStatsMonitor
    from stratagem_callbacks.finders import BatchSizeFinder, LearningRateFinder
    from stratagem_callbacks.finetuning import BackboneFinetuning, BaseFinetuning
    from stratagem_callbacks.pruning import ModelPruning
    from stratagem_callbacks.rate_sweep import SweepResult
    from stratagem_callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from stratagem_callbacks.throughput import ThroughputMonitor
    from stratagem_callbacks.training_curve import TrainingCurve
    from stratagem_callbacks.tuner import Tuner
    from stratagem_callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BatchSizeFinder",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "LearningRateFinder",
    "ModelPruning",
    "StochasticWeightAveraging",
    "SweepResult",
    "ThroughputMonitor",
    "TrainingCurve",
    "Tuner",
    "WeightAveraging",
]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".device_stats": "DeviceStatsMonitor",
            ".finders": "BatchSizeFinder LearningRateFinder",
            ".finetuning": "BackboneFinetuning BaseFinetuning",
            ".pruning": "ModelPruning",
            ".rate_sweep": "SweepResult",
            ".stochastic_weight_averaging": "StochasticWeightAveraging",
            ".throughput": "ThroughputMonitor",
            ".training_curve": "TrainingCurve",
            ".tuner": "Tuner",
            ".weight_averaging": "EMAWeightAveraging WeightAveraging",
        },
    )
