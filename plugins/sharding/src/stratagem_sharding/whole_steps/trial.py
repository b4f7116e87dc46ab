"""Whether an optimizer needs whole tensors, as its trial on small stand-ins has found out."""

from __future__ import annotations

from weakref import WeakSet

from torch.optim import Optimizer

from stratagem import Strategy

__all__ = ["OwnedStepStrategy", "needs_owners"]

_NEED_OWNERS: WeakSet[Optimizer] = WeakSet()
"""Optimizers of this process that were tried: the trial takes time, and comes before `setup`."""


class OwnedStepStrategy(Strategy):
    """Mixin for strategies whose `Prepared` lets optimizers that need whole tensors step by `OwnedStep`."""

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Refuse what steps neither shards nor whole tensors by themselves."""
        if super().refuse_optimizer(optimizer, world_size) is None:
            return None
        reason = self.try_optimizer(optimizer, ("parameters",))
        if reason is None:
            _NEED_OWNERS.add(optimizer)
        return reason


def needs_owners(optimizer: Optimizer) -> bool:
    """Whether an optimizer has to step by `OwnedStep`, after a strategy was asked by `refuse_optimizer`."""
    return optimizer in _NEED_OWNERS
