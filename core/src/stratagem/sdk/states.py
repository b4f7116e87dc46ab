"""States of modules and optimizers by name, for checkpoints."""

from stratagem.checkpoint.base import TensorInfo
from stratagem.checkpoint.failing import writing
from stratagem.runtime.checkpoint import fitting, resumption, same_ranks
from stratagem.strategies.model_state import load_model
from stratagem.strategies.optimizer_state import (
    common_states,
    describe_optimizer,
    holds_tensors,
    load_optimizer,
    optimizer_replicas,
    optimizer_tensors,
    parameter_names,
)

__all__ = [
    "TensorInfo",
    "common_states",
    "describe_optimizer",
    "fitting",
    "holds_tensors",
    "load_model",
    "load_optimizer",
    "optimizer_replicas",
    "optimizer_tensors",
    "parameter_names",
    "resumption",
    "same_ranks",
    "writing",
]
