"""Sharded parameters and gradients that a user's code sees as whole tensors."""

from stratagem_sharding.whole_tensors.gathering import shard_like
from stratagem_sharding.whole_tensors.module_copies import copies_as_before, copies_whole
from stratagem_sharding.whole_tensors.reading_exchange import ReadingExchange
from stratagem_sharding.whole_tensors.shard_arithmetic import on_shards
from stratagem_sharding.whole_tensors.user_tensors import (
    KEPT_GRADIENT,
    KeptGradient,
    WholeDTensor,
    WholeView,
    hold_whole,
)

__all__ = [
    "KEPT_GRADIENT",
    "KeptGradient",
    "ReadingExchange",
    "WholeDTensor",
    "WholeView",
    "copies_as_before",
    "copies_whole",
    "hold_whole",
    "on_shards",
    "shard_like",
]
