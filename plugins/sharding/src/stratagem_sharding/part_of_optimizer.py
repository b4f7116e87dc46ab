"""An optimizer of one rank's parameters, for strategies that distribute whole parameters among ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch.optim import Optimizer

__all__ = ["load_part", "optimizer_of_part"]


def optimizer_of_part(whole: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Make an optimizer of some of the parameters of `whole`: like it, whatever its constructor took.

    Args:
        whole: the user's optimizer. Its states of these parameters are taken over, and stay there, too.
        groups: of the new one.
    """
    part: Optimizer = object.__new__(type(whole))
    # A scheduler's wrapper of `step` is bound to the whole optimizer.
    part.__dict__.update({k: v for k, v in whole.__dict__.items() if k != "step"})
    part.param_groups = groups
    own = [parameter for group in groups for parameter in group["params"]]
    part.state = defaultdict(dict, {p: whole.state[p] for p in own if p in whole.state})
    return part


def load_part(groups: list[dict[str, Any]], part: Optimizer, state_dict: dict[str, Any]) -> None:
    """Load into an optimizer of one rank's parameters what is its own of a state dict of all.

    Args:
        groups: of all parameters, which `state_dict` counts. Their settings are restored in place: the user's
            optimizer and its schedulers have these very dicts.
        part: its groups are those of `groups`, with this rank's parameters.
        state_dict: as `torch.optim.Optimizer.state_dict` returns it; may lack states of other ranks' parameters.
    """
    parameters = [parameter for group in groups for parameter in group["params"]]
    positions = {id(parameter): position for position, parameter in enumerate(parameters)}
    states: dict[int, Any] = {}
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
