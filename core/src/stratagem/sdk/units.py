"""Policies that name modules to be wrapped, sharded or recomputed one by one."""

from stratagem.strategies.unit_dtypes import refuse_mixed_dtypes
from stratagem.strategies.units import Policy, called_parts, modules_named, recompute_activations, units_among

__all__ = [
    "Policy",
    "called_parts",
    "modules_named",
    "recompute_activations",
    "refuse_mixed_dtypes",
    "units_among",
]
