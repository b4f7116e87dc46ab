"""`Retrial`: whether an optimizer may still step shards, after its settings have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import isfinite
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from stratagem.strategies.optimizer_state import holds_tensors


class Retrial:
    """Tries an optimizer on shards again when a setting was switched on or off since the trial in `setup`.

    An option that is set later, as `group["centralize"] = True`, may make a step need whole tensors. A setting counts
    as switched when a flag, a text or None changes, or a number becomes zero, infinite or neither. Rates and momenta
    that move from step to step don't count.

    Args:
        optimizer: whose settings are looked at.
        given: the user's, whose settings are tried; the strategy may have made another one of it.
        first: what `as_set_up` returned for it in `setup`.
        refuse: tries an optimizer, and raises where it can't step shards.
    """

    def __init__(
        self, optimizer: Optimizer, given: Optimizer, first: Optimizer, refuse: Callable[[Optimizer], None]
    ) -> None:
        self._optimizer, self._given, self._first, self._refuse = optimizer, given, first, refuse
        self._groups = len(first.param_groups)
        self._switches = _switches(optimizer)

    def before_step(self) -> None:
        """Try again where a setting was switched. Not collective: all ranks have the same settings.

        Raises:
            CombinationError: the optimizer would come to other numbers on shards.
        """
        switches = _switches(self._optimizer)
        if switches != self._switches:
            self._switches = switches
            self._refuse(self._with_todays_settings())

    def _with_todays_settings(self) -> Optimizer:
        """Return the optimizer of `setup` with today's settings; groups that were added are today's."""
        tried, given = self._first, self._given
        holders = [(vars(tried), vars(given)), *zip(tried.param_groups, given.param_groups)]
        for before, today in holders:
            # What steps have made stays out: it has the shapes of shards.
            before.update(
                {k: value for k, value in today.items() if k not in _MADE and not holds_tensors(value)}
            )
        tried.param_groups[self._groups :] = given.param_groups[self._groups :]
        return tried


_MADE = ("param_groups", "params", "state")
"""What an optimizer and its groups have of tensors, which may be small, too."""


def as_set_up(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer over tensors without values like its parameters.

    The strategy may put shards in their place, and a step keeps tensors of its own in attributes. What the optimizer
    has of others, such as one that it wraps, has the same tensors. A lazy parameter has no shape yet, and is kept.
    """
    copy: Optimizer = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): copy}
    for group in optimizer.param_groups:
        for p in group["params"]:
            memo[id(p)] = p if is_lazy(p) else torch.empty(p.shape, dtype=p.dtype, device="meta")
    for key, value in vars(optimizer).items():
        # A scheduler replaces `step`, and hooks aren't called in a trial.
        is_kept = key in ("state", "step") or "_hooks" in key
        copy.__dict__[key] = value if is_kept else _copied(value, memo)
    return copy


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return deepcopy(value, memo)
    except Exception:  # a file, a lock: whatever an attribute may be, the trial says what is wrong with it
        return value


def _switches(optimizer: Optimizer) -> list[Any]:
    holders: list[Mapping[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return [(key, _switch(value)) for holder in holders for key, value in holder.items()]


def _switch(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return (value != 0, isfinite(value))
    return type(value)
