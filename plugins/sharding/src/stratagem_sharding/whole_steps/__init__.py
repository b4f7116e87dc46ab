"""Optimizers that need whole tensors step sharded parameters: each tensor is stepped by one rank, its owner."""

from stratagem_sharding.whole_steps.owned_step import OwnedStep
from stratagem_sharding.whole_steps.trial import needs_owners, reason_despite_owners

__all__ = ["OwnedStep", "needs_owners", "reason_despite_owners"]
