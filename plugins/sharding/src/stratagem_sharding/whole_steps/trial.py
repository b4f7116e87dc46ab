"""Choose how an optimizer steps sharded parameters, by the result of its trial on small stand-ins."""

from __future__ import annotations

import warnings
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.optim import Optimizer

from stratagem import ConfigError, Strategy
from stratagem.sdk.states import holds_tensors
from stratagem_sharding.local_step import LocalStep
from stratagem_sharding.whole_steps.owned_step import OwnedStep
from stratagem_sharding.whole_steps.replicated_step import ReplicatedStep

__all__ = ["reason_despite_wholes", "sharded_step", "sharded_step_again"]


class _Found(NamedTuple):
    """The result of an optimizer's trial."""

    step: type[OwnedStep] | type[ReplicatedStep]
    reason: str


_SHOWN = ("param_groups", "state")
"""Attributes of an optimizer whose tensors are replaced during a step."""
_FOUND: WeakKeyDictionary[Optimizer, _Found] = WeakKeyDictionary()
"""Trial results of this process's optimizers: a trial takes time, and runs before `setup`, which needs the result."""


def reason_despite_wholes(
    strategy: Strategy, optimizer: Optimizer, reason: str | None, *, has_all: bool = True
) -> str | None:
    """Return why an optimizer can't step sharded parameters, not even as whole tensors; None if it can.

    For `refuse_optimizer` of strategies whose `Prepared` uses `sharded_step`.

    Args:
        strategy: the strategy that tries the optimizer.
        optimizer: as `Strategy.refuse_optimizer` got it.
        reason: why it can't step shards, as returned by the base class's `refuse_optimizer`; None if it can.
        has_all: whether each rank has all parameters, whole or in shards.
    """
    _FOUND.pop(optimizer, None)
    if reason is None:
        return None
    despite = strategy.try_optimizer(optimizer, ("parameters",))
    if despite is None:
        _FOUND[optimizer] = _Found(OwnedStep, reason)
    elif has_all:
        found, despite = _Found(ReplicatedStep, despite), strategy.try_optimizer(optimizer, ())
        if despite is None:
            _FOUND[optimizer] = found
    return despite


def sharded_step(optimizer: Optimizer, strategy: str) -> LocalStep:
    """Return the `LocalStep` for an optimizer of sharded parameters. Call `refuse_optimizer` of the strategy before.

    Warns on rank 0 if each rank is going to need as much memory as under ddp.

    Args:
        optimizer: the optimizer that will step.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer needs whole tensors, and keeps parameters outside its groups.
    """
    found = _FOUND.get(optimizer)
    if found is None:
        return LocalStep(optimizer)
    if found.step is ReplicatedStep and (not dist.is_initialized() or dist.get_rank() == 0):
        warnings.warn(
            f"{type(optimizer).__name__} steps all parameters, whole, on every rank, with the memory that it takes "
            f"under ddp, since {found.reason}",
            UserWarning,
            stacklevel=2,
        )
    return found.step(optimizer, strategy)


def sharded_step_again(step: LocalStep, optimizer: Optimizer, tried: Optimizer, strategy: str) -> LocalStep:
    """Return the `LocalStep` for an optimizer whose settings were changed and which was tried again.

    Args:
        step: the `LocalStep` used so far.
        optimizer: the optimizer that steps.
        tried: the optimizer that `refuse_optimizer` was called with.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer now needs all parameters at once, but each rank has the states of only some; or it
            now needs whole tensors, but has shards in an attribute.
    """
    found = _FOUND.get(tried)
    if found is None or isinstance(step, found.step):
        return step
    if isinstance(step, OwnedStep):
        raise ConfigError(
            f"{type(optimizer).__name__} can't be changed in mid-training so that it needs all parameters at once: "
            f"under {strategy}, each rank has states of some of them; set it before training, or choose ddp"
        )
    kept = next(
        (key for key, value in vars(optimizer).items() if key not in _SHOWN and holds_tensors(value)), None
    )
    if kept is not None:
        raise ConfigError(
            f"{type(optimizer).__name__} can't be changed in mid-training so that it needs whole tensors: it has "
            f"those of shards in {kept!r}; set it before training, or choose ddp"
        )
    _FOUND[optimizer] = found
    return sharded_step(optimizer, strategy)
