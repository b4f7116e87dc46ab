"""Which modules a user means: to be gathered by themselves, or computed again in backward."""

from __future__ import annotations

from stratagem.strategies.units.policy import CONTAINERS, Policy, called_parts, modules_named, units_among
from stratagem.strategies.units.recompute import recompute_activations

__all__ = ["CONTAINERS", "Policy", "called_parts", "modules_named", "recompute_activations", "units_among"]
