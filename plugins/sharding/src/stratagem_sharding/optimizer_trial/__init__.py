"""Find out whether an optimizer steps shards as it would step whole tensors, by stepping small stand-ins."""

from stratagem_sharding.optimizer_trial.trial import why_not

__all__ = ["why_not"]
