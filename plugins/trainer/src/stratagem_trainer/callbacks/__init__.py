"""Code that runs at named moments of a fit; importing this imports neither torch, rich nor matplotlib."""

from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.early_stopping import EarlyStopping
from stratagem_trainer.callbacks.learning_rate import LearningRateMonitor
from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
from stratagem_trainer.callbacks.progress import ProgressBar
from stratagem_trainer.callbacks.training_curve import TrainingCurve

__all__ = [
    "Callback",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ProgressBar",
    "TrainingCurve",
]
