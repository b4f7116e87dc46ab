"""Step sharded parameters with optimizers that need whole tensors: each tensor on its owner, or all on every rank."""

from stratagem_sharding.whole_steps.owned_step import OwnedStep
from stratagem_sharding.whole_steps.replicated_step import ReplicatedStep
from stratagem_sharding.whole_steps.trial import reason_despite_wholes, sharded_step, sharded_step_again

__all__ = ["OwnedStep", "ReplicatedStep", "reason_despite_wholes", "sharded_step", "sharded_step_again"]
