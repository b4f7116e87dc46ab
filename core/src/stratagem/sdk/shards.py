"""Shards of parameters: kept between runs, read within a step, cut out of whole tensors."""

from stratagem.checkpoint.shards import padded_flat_shard, row_shard
from stratagem.strategies.fingerprint import fingerprint, number_of
from stratagem.strategies.kept_shards import KeptShards, Refill, leave_shards
from stratagem.strategies.local_step import LocalStep
from stratagem.strategies.module_snapshot import ModuleSnapshot
from stratagem.strategies.used_parameter import parameter_used_in

__all__ = [
    "KeptShards",
    "LocalStep",
    "ModuleSnapshot",
    "Refill",
    "fingerprint",
    "leave_shards",
    "number_of",
    "padded_flat_shard",
    "parameter_used_in",
    "row_shard",
]
