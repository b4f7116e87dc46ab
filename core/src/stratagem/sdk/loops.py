"""For training loops: losses, data divided among ranks, random numbers."""

from stratagem.data.evaluate import EvalData
from stratagem.data.generators import global_kept
from stratagem.data.loaders import holds_loaders
from stratagem.data.rebuild import in_order, order_of, with_sampler
from stratagem.data.rng import capture_rng, forked_rng, restore_rng
from stratagem.data.sharing import batch_size_in, is_rank_aware, reads_by_sampler
from stratagem.data.train import TrainData
from stratagem.precision.skippable import skippable
from stratagem.runtime.launching import launch
from stratagem.runtime.loop import PreparedModule
from stratagem.runtime.plan import announce, announce_by_value, announce_data
from stratagem.runtime.session import seed_everything
from stratagem.strategies.loss_sum import loss_of, weight_of
from stratagem.strategies.loss_weights import weighted_backward
from stratagem.strategies.replica_guard import ReplicaGuard
from stratagem.strategies.stepping import drop_gradients, run_micro_batch

__all__ = [
    "EvalData",
    "PreparedModule",
    "ReplicaGuard",
    "TrainData",
    "announce",
    "announce_by_value",
    "announce_data",
    "batch_size_in",
    "capture_rng",
    "drop_gradients",
    "forked_rng",
    "global_kept",
    "holds_loaders",
    "in_order",
    "is_rank_aware",
    "launch",
    "loss_of",
    "order_of",
    "reads_by_sampler",
    "restore_rng",
    "run_micro_batch",
    "seed_everything",
    "skippable",
    "weight_of",
    "weighted_backward",
    "with_sampler",
]
