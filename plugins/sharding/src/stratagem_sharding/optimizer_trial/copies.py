"""Copies of an optimizer that have other parameters, and their steps in the trial."""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.sdk.states import common_states

RATE = 0.01
"""Learning rate of groups whose learning rate is 0."""


class TrialOptions(NamedTuple):
    """One way to try."""

    dtype: torch.dtype | None
    """Dtype of the stand-ins; None for the dtype of the parameters."""
    sparse: bool = False
    """Whether gradients are sparse."""
    closure: bool = False
    """Whether steps get a closure, as some optimizers require."""


class TrialCopy:
    """A copy of an optimizer with other parameters."""

    def __init__(self, optimizer: Optimizer, groups: list[list[torch.Tensor]]) -> None:
        self.groups = [[nn.Parameter(p.detach().clone()) for p in group] for group in groups]
        self._optimizer = _copied(optimizer, self.groups)
        if callable(train := getattr(self._optimizer, "train", None)):
            train()  # schedule-free optimizers must be in train mode before they step
        self._numbers: dict[Any, float] = {}
        """The numbers that `_numbered` found before the last step."""
        self.moves_first = False
        """Whether a step has changed parameters before its first call of the closure."""
        self.common = ""
        """Name of a number of a group or of the optimizer that a step has changed, except for step counts."""

    def common_states(self) -> dict[Any, Any]:
        """Return the states whose keys aren't parameters."""
        return common_states(self._optimizer)

    def values(self) -> list[list[torch.Tensor]]:
        """Return the current values of the parameters, by group."""
        return [[parameter.detach().clone() for parameter in group] for group in self.groups]

    def step(self, grads: list[list[torch.Tensor]], how: TrialOptions) -> None:
        self._numbers = {place: float(holder[key]) for place, (holder, key) in self._numbered().items()}

        calls, at_first = itertools.count(1), self.values()

        def assign() -> float:
            call = next(calls)
            if call == 1:
                now = itertools.chain(*self.values())
                self.moves_first |= not all(map(torch.equal, itertools.chain(*at_first), now))
            smaller = (
                1 / call
            )  # scales the loss and the gradient, so that a line search continues and then ends
            for group, own in zip(self.groups, grads):
                for parameter, grad in zip(group, own):
                    # Depends on each element alone, and changes if the optimizer moves it before a second call.
                    grad = (smaller * (grad + parameter)).detach().to(grad.dtype)
                    parameter.grad = grad.to_sparse(1) if how.sparse and grad.dim() else grad
            return smaller

        # The class's `step`: schedulers and other code may have replaced the instance's.
        step = type(self._optimizer).step
        before = {place: float(holder[key]) for place, (holder, key) in self._common().items()}
        if how.closure:
            step(self._optimizer, assign)
        else:
            assign()
            step(self._optimizer)
        for (at, key), (holder, _) in self._common().items():
            if float(holder[key]) - before.get((at, key), holder[key]) not in (0, 1):
                self.common = self.common or str(key)

    def count_on(self, count: int) -> None:
        """Continue as after `count - 1` steps: set each number that the last step has raised by 1."""
        for place, (holder, key) in self._numbered().items():
            value = holder[key]
            if self._numbers.get(place) != float(value) - 1:
                continue
            if isinstance(value, torch.Tensor):
                value.fill_(count - 1)
            else:
                holder[key] = type(value)(count - 1)

    def _numbered(self) -> dict[Any, tuple[dict[Any, Any], Any]]:
        """Return where the optimizer stores numbers: in its states, its groups and its attributes."""
        parameters = [parameter for group in self.groups for parameter in group]
        return self._numbers_in(
            [*(self._optimizer.state.get(each, {}) for each in parameters), *self._shared]
        )

    def _common(self) -> dict[Any, tuple[dict[Any, Any], Any]]:
        """Return where the optimizer stores numbers that several parameters share."""
        return self._numbers_in(self._shared)

    @property
    def _shared(self) -> list[dict[Any, Any]]:
        return [*self._optimizer.param_groups, vars(self._optimizer)]

    @staticmethod
    def _numbers_in(holders: list[dict[Any, Any]]) -> dict[Any, tuple[dict[Any, Any], Any]]:
        return {
            (at, key): (holder, key)
            for at, holder in enumerate(holders)
            for key, value in holder.items()
            if (isinstance(value, (int, float)) and not isinstance(value, bool))
            or (isinstance(value, torch.Tensor) and value.numel() == 1 and not value.dim())
        }


def _copied(optimizer: Optimizer, groups: list[list[nn.Parameter]]) -> Optimizer:
    made: Optimizer = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): made}
    settings = []
    for group, own in zip(optimizer.param_groups, groups):
        for parameter in group["params"]:
            memo[id(parameter)] = own[0] if own else parameter
        settings.append(group)
    for group, own in zip(settings, groups):
        kept = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        group_copy = deepcopy(kept, memo)
        memo.setdefault(id(group), group_copy)
        group_copy["params"] = list(own)
        _leave_warm_up(group_copy)
    for key, value in vars(optimizer).items():
        if key in ("state", "step"):
            continue
        if key == "param_groups":
            made.__dict__[key] = [memo[id(group)] for group in settings]
        elif "_hooks" in key:
            made.__dict__[key] = OrderedDict()
        else:
            made.__dict__[key] = deepcopy(value, memo)
    made.state = defaultdict(dict)
    for group, own in zip(settings, groups):
        state = _state_at_start(optimizer, group)
        for parameter in own if state else ():
            made.state[parameter] = {
                key: torch.full_like(parameter, value.value)
                if isinstance(value, _All)
                else deepcopy(value, dict(memo))  # a separate copy for each parameter
                for key, value in state.items()
            }
    return made


def _leave_warm_up(group: dict[str, Any]) -> None:
    """Set a learning rate other than 0. A warm-up may start at 0, where no parameter moves and any trial agrees."""
    rate = group.get("lr")
    if isinstance(rate, (int, float, torch.Tensor)) and not float(rate):
        later = float(group.get("initial_lr") or 0) or RATE
        group["lr"] = torch.full_like(rate, later) if isinstance(rate, torch.Tensor) else later


class _All(NamedTuple):
    """Describes a state tensor of a parameter's shape whose elements all have the same value."""

    value: Any


def _state_at_start(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """Return the states that the constructor created for the group's parameters.

    torch 2.9's Adagrad creates states only there. Empty if the optimizer creates states when it steps, or has
    stepped.
    """
    if not group["params"]:
        return {}
    largest = max(group["params"], key=torch.Tensor.dim)
    made: dict[str, Any] = {}
    for key, value in optimizer.state.get(largest, {}).items():
        if key == "step" or not isinstance(value, torch.Tensor) or value.shape != largest.shape:
            made[key] = value
            continue
        own = (value.to_local() if hasattr(value, "to_local") else value).detach().reshape(-1)
        if own.is_meta or bool((own != own[:1]).any()):
            return {}
        made[key] = _All(own[0].item() if own.numel() else 0.0)
    return made
