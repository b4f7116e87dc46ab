"""Whether an optimizer needs whole tensors, as its trial on small stand-ins has found out."""

from __future__ import annotations

from weakref import WeakSet

from torch.optim import Optimizer

from stratagem import Strategy

__all__ = ["needs_owners", "reason_despite_owners"]

_NEED_OWNERS: WeakSet[Optimizer] = WeakSet()
"""Optimizers of this process that were tried: the trial takes time, and comes before `setup`."""


def reason_despite_owners(strategy: Strategy, optimizer: Optimizer, reason: str | None) -> str | None:
    """Return why an optimizer can step neither shards nor whole tensors by themselves; None where it can.

    For `refuse_optimizer` of strategies whose `Prepared` lets optimizers that need whole tensors step by `OwnedStep`.

    Args:
        strategy: tries it.
        optimizer: as `Strategy.refuse_optimizer` got it.
        reason: why it can't step shards, as that method of the base class has found out.
    """
    if reason is None:
        return None
    reason = strategy.try_optimizer(optimizer, ("parameters",))
    if reason is None:
        _NEED_OWNERS.add(optimizer)
    return reason


def needs_owners(optimizer: Optimizer) -> bool:
    """Whether an optimizer has to step by `OwnedStep`, after a strategy was asked by `refuse_optimizer`."""
    return optimizer in _NEED_OWNERS
