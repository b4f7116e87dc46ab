"""`Retrial`: checks whether an optimizer may still step shards after its settings have changed."""

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

    An option that is set later, such as `group["centralize"] = True`, may make a step need whole tensors. A setting
    counts as switched if a flag, a text or None changes, or if a number changes between zero, infinite and other
    values. Learning rates and momenta that change from step to step don't count.
    Attributes that a step itself changes don't count either, such as LBFGS's number of elements.

    Args:
        optimizer: the optimizer whose settings are watched.
        given: the user's optimizer, whose settings are tried. The strategy may have made `optimizer` from it.
        first: the copy of the user's optimizer that `as_set_up` returned in `setup`.
        refuse: tries an optimizer, and raises if it can't step shards.
    """

    def __init__(
        self, optimizer: Optimizer, given: Optimizer, first: Optimizer, refuse: Callable[[Optimizer], None]
    ) -> None:
        self._optimizer, self._given, self._first, self._refuse = optimizer, given, first, refuse
        self._groups = len(first.param_groups)
        self._attributes, self._settings = _attributes(optimizer), _settings(optimizer)
        self._set_by_steps: set[str] = set()
        """Attributes that a step has changed last. Their values fit today's parameters, and not the trial's."""

    def before_step(self) -> None:
        """Try again if a setting was switched. Not collective: all ranks have the same settings.

        Raises:
            CombinationError: the optimizer's results would differ on shards.
        """
        attributes, settings = _attributes(self._optimizer), _settings(self._optimizer)
        if attributes != self._attributes or settings != self._settings:
            self._set_by_steps -= _changed(self._attributes, attributes)
            self._attributes, self._settings = attributes, settings
            self._refuse(self._with_todays_settings())

    def after_step(self) -> None:
        """Note the attributes that the step has changed."""
        attributes = _attributes(self._optimizer)
        if attributes != self._attributes:
            self._set_by_steps |= _changed(self._attributes, attributes)
            self._attributes = attributes

    def _with_todays_settings(self) -> Optimizer:
        """Return the copy from `setup` with current settings. Groups that were added later are the current ones."""
        tried, given = self._first, self._given
        settings = _without_tensors(vars(given))
        vars(tried).update({k: value for k, value in settings.items() if k not in self._set_by_steps})
        for before, today in zip(tried.param_groups, given.param_groups):
            before.update(_without_tensors(today))
        tried.param_groups[self._groups :] = given.param_groups[self._groups :]
        return tried


def _without_tensors(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings. Tensors that steps have made have the shapes of shards."""
    return {k: value for k, value in holder.items() if k not in _MADE and not holds_tensors(value)}


_MADE = ("param_groups", "params", "state")
"""Names of an optimizer and its groups for tensors. `holds_tensors` doesn't find those with one element."""


def as_set_up(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer over "meta" tensors with the shapes of its parameters.

    The copy is for trials after the strategy has replaced the parameters by shards, and steps have put tensors into
    attributes. Objects in attributes, such as a wrapped optimizer, are copied with the same "meta" tensors. A lazy
    parameter has no shape yet, and is kept.
    """
    copy: Optimizer = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): copy}
    for group in optimizer.param_groups:
        for p in group["params"]:
            memo[id(p)] = p if is_lazy(p) else torch.empty(p.shape, dtype=p.dtype, device="meta")
    for key, value in vars(optimizer).items():
        # Not copied: `step`, which a scheduler may have replaced, and hooks, which a trial doesn't call.
        is_kept = key in ("state", "step") or "_hooks" in key
        copy.__dict__[key] = value if is_kept else _copied(value, memo)
    return copy


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return deepcopy(value, memo)
    except Exception:  # a file, a lock: whatever an attribute may be, the trial says what is wrong with it
        return value


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    return {key: _switch(value) for key, value in vars(optimizer).items()}


def _settings(optimizer: Optimizer) -> list[Any]:
    return [(key, _switch(value)) for group in optimizer.param_groups for key, value in group.items()]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {key for key, value in now.items() if key not in before or before[key] != value}


def _switch(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return (value != 0, isfinite(value))
    return type(value)
