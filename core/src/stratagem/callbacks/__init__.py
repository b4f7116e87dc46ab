"""Code that runs at named moments of a fit; importing this imports neither torch, rich nor matplotlib."""

from stratagem.callbacks.base import Callback
from stratagem.callbacks.early_stopping import EarlyStopping
from stratagem.callbacks.learning_rate import LearningRateMonitor
from stratagem.callbacks.model_checkpoint import ModelCheckpoint
from stratagem.callbacks.progress import ProgressBar
from stratagem.callbacks.training_curve import TrainingCurve

__all__ = [
    "Callback",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ProgressBar",
    "TrainingCurve",
]
