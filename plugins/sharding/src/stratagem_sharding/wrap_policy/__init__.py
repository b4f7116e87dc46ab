"""Select the modules that are gathered separately, or recomputed in backward."""

from __future__ import annotations

from stratagem_sharding.wrap_policy.policy import (
    CONTAINERS,
    Policy,
    callable_children,
    modules_named,
    units_among,
)
from stratagem_sharding.wrap_policy.recompute import recompute_activations

__all__ = [
    "CONTAINERS",
    "Policy",
    "callable_children",
    "modules_named",
    "recompute_activations",
    "units_among",
]
