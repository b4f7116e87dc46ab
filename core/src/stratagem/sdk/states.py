"""States of modules and optimizers by name, for checkpoints."""

from stratagem.checkpoint import TensorInfo, describe
from stratagem.checkpoint.directory import DirectoryCheckpointer
from stratagem.checkpoint.failing import writing
from stratagem.checkpoint.strict_json import Count
from stratagem.runtime.checkpoint import fitting, same_ranks
from stratagem.strategies.model_state import load_model
from stratagem.strategies.optimizer_state import (
    describe_optimizer,
    load_optimizer,
    optimizer_replicas,
    optimizer_tensors,
    parameter_names,
    share_values,
)
from stratagem.strategies.replicated import ReplicatedPrepared

__all__ = [
    "Count",
    "DirectoryCheckpointer",
    "ReplicatedPrepared",
    "TensorInfo",
    "describe",
    "describe_optimizer",
    "fitting",
    "load_model",
    "load_optimizer",
    "optimizer_replicas",
    "optimizer_tensors",
    "parameter_names",
    "same_ranks",
    "share_values",
    "writing",
]
