"""Shards of parameters: kept between runs, read within a step, cut out of whole tensors."""

from stratagem.checkpoint.cutting import own_piece, own_rows
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
    "own_piece",
    "own_rows",
    "parameter_used_in",
]
