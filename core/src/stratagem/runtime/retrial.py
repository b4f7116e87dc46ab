"""`Retrial`: whether an optimizer may still step shards, after its settings have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


class Retrial:
    """Tries an optimizer on shards again when a setting was switched on or off since the trial in `setup`.

    An option that is set later, as `group["centralize"] = True`, may make a step need whole tensors. A setting counts
    as switched when a flag, a text or None changes, or a number becomes zero, infinite or neither. Rates and momenta
    that move from step to step don't count.

    Args:
        optimizer: whose settings are looked at.
        given: the user's, which is tried; the strategy may have made another one of it.
        shapes: of the parameters that the groups had in `setup`: tensors without values. The strategy may have put
            shards in their place.
        refuse: tries an optimizer, and raises where it can't step shards.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        given: Optimizer,
        shapes: list[list[torch.Tensor]],
        refuse: Callable[[Optimizer], None],
    ) -> None:
        self._optimizer, self._given, self._shapes, self._refuse = optimizer, given, shapes, refuse
        self._switches = _switches(optimizer)

    def before_step(self) -> None:
        """Try again where a setting was switched. Not collective: all ranks have the same settings.

        Raises:
            CombinationError: the optimizer would come to other numbers on shards.
        """
        switches = _switches(self._optimizer)
        if switches != self._switches:
            self._switches = switches
            self._refuse(self._as_set_up())

    def _as_set_up(self) -> Optimizer:
        """Return an optimizer with today's settings and the shapes of `setup`; groups that were added are today's."""
        given = self._given
        made: Optimizer = object.__new__(type(given))
        made.__dict__.update(vars(given))
        known = zip(given.param_groups, self._shapes)
        made.param_groups = [
            *({**group, "params": shapes} for group, shapes in known),
            *given.param_groups[len(self._shapes) :],
        ]
        return made


def shapes_of(optimizer: Optimizer) -> list[list[torch.Tensor]]:
    """Return a tensor without values like each parameter, by groups; a lazy one has no shape yet, and is kept."""
    return [
        [p if is_lazy(p) else torch.empty(p.shape, dtype=p.dtype, device="meta") for p in group["params"]]
        for group in optimizer.param_groups
    ]


def _switches(optimizer: Optimizer) -> list[Any]:
    holders: list[Mapping[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return [(key, _switch(value)) for holder in holders for key, value in holder.items()]


def _switch(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return (value != 0, isfinite(value))
    return type(value)
