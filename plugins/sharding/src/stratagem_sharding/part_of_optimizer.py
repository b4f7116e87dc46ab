"""Optimizers of one rank's parameters, for strategies that distribute whole parameters among ranks."""

from __future__ import annotations

from collections import defaultdict
from operator import is_
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem_sharding.torch_private import is_of_scheduler

__all__ = [
    "StatesOfPart",
    "copy_attributes",
    "load_part",
    "members_of",
    "no_state_dict",
    "optimizer_of_part",
    "refuse_other_members",
    "refuse_replaced_step",
]

_OWN_ATTRIBUTES = frozenset({"param_groups", "state", "step"})
"""Attributes that the user's optimizer of all parameters and the optimizer of this rank's parameters don't share."""


class StatesOfPart:
    """Replaces the user's `optimizer.state` if each rank has the states of some parameters. Only `clear()` works.

    Other accesses are refused on every rank: one rank could read or write a state, and the others don't have it.

    Args:
        optimizer: the optimizer that has this rank's states.
        strategy: the strategy's name, for messages.
    """

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        self._optimizer, self._strategy = optimizer, strategy

    def clear(self) -> None:
        """Drop the states of all parameters."""
        self._optimizer.state.clear()

    def _refuse(self, *_: Any) -> Any:
        raise ConfigError(
            f"optimizer.state was read or changed under {self._strategy}, where each rank has the states of some "
            "parameters: save states by runtime.save(path), drop all by optimizer.state.clear(), or choose ddp"
        )

    __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = __bool__ = _refuse
    get = items = keys = values = pop = popitem = setdefault = update = copy = _refuse


def no_state_dict(optimizer: Optimizer, strategy: str) -> ConfigError:
    """Return the error for user code that calls `state_dict` or `load_state_dict` of a sharded optimizer.

    Args:
        optimizer: the user's optimizer.
        strategy: the strategy's name, for messages.
    """
    return ConfigError(
        f"{strategy} keeps the states of {type(optimizer).__name__} in shards, so that no rank has its state_dict: "
        "save them by runtime.save(path) or a checkpoint of the Trainer, which any strategy loads, or choose ddp"
    )


def members_of(groups: list[dict[str, Any]]) -> list[list[torch.Tensor]]:
    """Return the parameters of each group, for `refuse_other_members`."""
    return [list(group["params"]) for group in groups]


def refuse_replaced_step(whole: Optimizer, strategy: str) -> None:
    """Refuse an optimizer whose `step` the user's code has replaced. A scheduler's wrapper is allowed: it counts
    calls.

    Raises:
        ConfigError: the optimizer's `step` isn't that of its class.
    """
    patched = vars(whole).get("step")
    if patched is not None and not is_of_scheduler(patched):
        raise ConfigError(
            f"step of this {type(whole).__name__} was replaced before setup(), and {strategy} steps a part of it on "
            "each rank by its class's own: derive a class that overrides step, or choose ddp"
        )


def copy_attributes(source: Optimizer, target: Optimizer) -> None:
    """Copy to `target` the attributes that the user's code or a step has set on `source`."""
    for name, value in vars(source).items():
        if name not in _OWN_ATTRIBUTES and not name.startswith("_optimizer_"):
            target.__dict__[name] = value


def refuse_other_members(
    groups: list[dict[str, Any]], shared: list[list[torch.Tensor]], strategy: str
) -> None:
    """Refuse groups whose parameters have changed since they were distributed among ranks. New groups may follow.

    Args:
        groups: the optimizer's current groups.
        shared: the parameters of each group when they were distributed among ranks.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: a group or a parameter was removed, moved or added.
    """
    same = len(groups) >= len(shared) and all(
        len(group["params"]) == len(members) and all(map(is_, group["params"], members))
        for group, members in zip(groups, shared)
    )
    if not same:
        raise ConfigError(
            f"the parameters of optimizer.param_groups aren't those that {strategy} has shared out among the ranks: "
            "freeze parameters by requires_grad_(False), add new ones by add_param_group, or choose ddp"
        )


def optimizer_of_part(whole: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Return an optimizer like `whole` of some of its parameters, without calling the constructor of its class.

    Args:
        whole: the user's optimizer. The new optimizer shares its states of these parameters.
        groups: groups of the new optimizer.
    """
    part: Optimizer = object.__new__(type(whole))
    # A scheduler's wrapper of `step` is bound to the whole optimizer.
    part.__dict__.update({k: v for k, v in whole.__dict__.items() if k != "step"})
    part.param_groups = groups
    own = [parameter for group in groups for parameter in group["params"]]
    part.state = defaultdict(dict, {p: whole.state[p] for p in own if p in whole.state})
    return part


def load_part(groups: list[dict[str, Any]], part: Optimizer, state_dict: dict[str, Any]) -> None:
    """Load this rank's part of a state dict of all parameters into an optimizer of this rank's parameters.

    Args:
        groups: groups of all parameters, in the order in which `state_dict` numbers them. Their settings are loaded
            in place, since the user's optimizer and its schedulers share these dicts.
        part: the optimizer; its groups are `groups` reduced to this rank's parameters.
        state_dict: as `torch.optim.Optimizer.state_dict` returns it. It may lack states of other ranks' parameters.
            Additional keys of the optimizer's class are loaded too.
    """
    parameters = [parameter for group in groups for parameter in group["params"]]
    positions = {id(parameter): position for position, parameter in enumerate(parameters)}
    states = {key: value for key, value in state_dict["state"].items() if not isinstance(key, int)}
    own: list[dict[str, Any]] = []
    count = 0
    for saved, local in zip(state_dict["param_groups"], part.param_groups):
        first = count
        for parameter in local["params"]:
            position = positions[id(parameter)]
            if position in state_dict["state"]:
                states[count] = state_dict["state"][position]
            count += 1
        own.append({**saved, "params": list(range(first, count))})
    part.load_state_dict({"state": states, "param_groups": own})
    for ours, local in zip(groups, part.param_groups):
        ours.update({k: v for k, v in local.items() if k != "params"})
