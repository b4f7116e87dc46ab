"""Policies that name modules to be wrapped, sharded or recomputed one by one."""

from stratagem.strategies.unit_dtypes import refuse_mixed_dtypes
from stratagem.strategies.wrap_policy import (
    Policy,
    callable_children,
    modules_named,
    recompute_activations,
    units_among,
)

__all__ = [
    "Policy",
    "callable_children",
    "modules_named",
    "recompute_activations",
    "refuse_mixed_dtypes",
    "units_among",
]
