"""Whether an optimizer steps shards as it would step whole tensors, found out by stepping small stand-ins."""

from stratagem_sharding.optimizer_trial.trial import why_not

__all__ = ["why_not"]
