"""Optimizer states by names of parameters, so that a strategy can load the checkpoints of any other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.errors import CheckpointError
from stratagem.precision.optimizer_name import optimizer_name

if TYPE_CHECKING:
    from stratagem.checkpoint.base import CheckpointReader


def parameter_names(original_module: nn.Module) -> dict[int, str]:
    """Map id(parameter) → name; a tied parameter has the first of its names."""
    return {id(parameter): name for name, parameter in original_module.named_parameters()}


def optimizer_tensors(original_module: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, torch.Tensor]:
    """Return all tensors in the states of `optimizers`, by "optimizer/<index>/<name>/<state>".

    Raises:
        CheckpointError: an optimizer has a parameter that isn't one of the module.
    """
    tensors: dict[str, torch.Tensor] = {}
    for index, optimizer in enumerate(optimizers):
        names = _names_in(original_module, optimizer)
        for parameter, state in states_by_parameter(optimizer):
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer/{index}/{names[id(parameter)]}/{key}"] = value
    return tensors


def describe_optimizer(original_module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state that isn't saved as tensors: groups with parameter names, and other states.

    Raises:
        CheckpointError: the optimizer has a parameter that isn't one of the module.
    """
    names = _names_in(original_module, optimizer)
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    values = {
        names[id(parameter)]: others
        for parameter, state in states_by_parameter(optimizer)
        if (others := {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)})
    }
    return {
        "class": type(optimizer).__name__,
        "groups": groups,
        "values": values,
        "common": common_states(optimizer),
    }


def states_by_parameter(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Yield each parameter's state."""
    return ((key, state) for key, state in optimizer.state.items() if isinstance(key, torch.Tensor))


def common_states(optimizer: Optimizer) -> dict[Any, Any]:
    """Return entries of `optimizer.state` whose keys aren't parameters, such as a step count for all parameters."""
    return {key: state for key, state in optimizer.state.items() if not isinstance(key, torch.Tensor)}


def holds_tensors(value: Any) -> bool:
    """Whether an optimizer's attribute or setting holds tensors of several elements, or another optimizer."""
    if isinstance(value, torch.Tensor):
        return value.numel() > 1
    if isinstance(value, Mapping):
        return any(map(holds_tensors, (*value.keys(), *value.values())))
    if isinstance(value, (list, tuple, set)):
        return any(map(holds_tensors, value))
    return isinstance(value, Optimizer)


def optimizer_replicas(index: int, optimizer: Optimizer, counts_too: bool) -> Iterator[tuple[str, Any]]:
    """Yield settings and step counts of an optimizer, for comparing ranks that hold copies of it.

    Args:
        index: its place among the run's optimizers.
        optimizer: of this rank.
        counts_too: whether step counts are compared. All ranks must then have states for the same parameters.
    """
    groups = [{k: _setting(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    yield f"the settings of optimizer {index}", groups
    if not counts_too:
        return
    counts: dict[torch.device, list[torch.Tensor]] = {}
    others = []
    for _, state in states_by_parameter(optimizer):
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor):
            # torch.cat refuses a mix of DTensors and other tensors.
            count = count.to_local() if hasattr(count, "to_local") else count
            counts.setdefault(count.device, []).append(count.detach().reshape(-1))
        else:
            others.append(count)
    yield f"which parameters optimizer {index} has stepped, and how often", others
    for device, tensors in counts.items():
        yield f"the step counts of optimizer {index} on {device.type}", torch.cat(tensors)


def _setting(value: Any) -> Any:
    """Return what is compared of a setting.

    For other objects that is the type's name, since their repr may contain an address. Values of tensors on other
    devices than the CPU aren't compared, since reading them waits for the device.
    """
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.device.type == "cpu" else None
    if isinstance(value, (list, tuple)):
        return [_setting(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def _names_in(original_module: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    names = parameter_names(original_module)
    unknown = sum(
        id(parameter) not in names for group in optimizer.param_groups for parameter in group["params"]
    )
    if unknown:
        raise CheckpointError(
            f"{unknown} parameters of {optimizer_name(optimizer)} aren't parameters of the module, so a "
            "checkpoint has no name for them: make them attributes of the module"
        )
    return names


def load_optimizer(
    original_module: nn.Module,
    optimizer: Optimizer,
    index: int,
    reader: CheckpointReader,
    saved: Sequence[dict[str, Any]],
    owned: Collection[torch.Tensor] | None = None,
) -> None:
    """Bring `optimizer` to the state that optimizer `index` had when `saved` was written.

    States with the shape of their parameter are read in the parameter's layout: the moments of a sharded parameter
    are sharded in the same way.

    Args:
        original_module: the module whose parameters' names are used.
        optimizer: to be brought to the saved state by its `load_state_dict`.
        index: its place among the run's optimizers.
        reader: the opened checkpoint.
        saved: what `describe_optimizer` returned for each optimizer.
        owned: the parameters whose states this rank keeps; nothing is read for others. All when None.

    Raises:
        CheckpointError: the checkpoint's optimizer has other groups or parameters.
    """
    if index >= len(saved):
        raise CheckpointError(
            f"the checkpoint has {len(saved)} optimizers and this run needs at least {index + 1}: load its "
            "weights alone, or configure the same optimizers"
        )
    description, names = saved[index], _names_in(original_module, optimizer)
    groups = optimizer.param_groups
    ours = [[names[id(parameter)] for parameter in group["params"]] for group in groups]
    theirs = [group["params"] for group in description["groups"]]
    if [sorted(group) for group in ours] != [sorted(group) for group in theirs]:
        raise CheckpointError(
            f"optimizer {index} of the checkpoint has parameter groups of "
            f"{[len(group) for group in theirs]} parameters, this run's of {[len(group) for group in ours]}, or "
            "with other names: configure the same groups"
        )
    parameters = [parameter for group in groups for parameter in group["params"]]
    kept = None if owned is None else {names[id(p)] for p in owned}
    tensors = _read_states(reader, index, {names[id(p)]: p for p in parameters}, kept)
    states = {
        position: {**description["values"].get(names[id(p)], {}), **tensors.get(names[id(p)], {})}
        for position, p in enumerate(parameters)
        if kept is None or names[id(p)] in kept
    }
    positions = iter(range(len(parameters)))
    common: dict[Any, Any] = deepcopy(description.get("common", {}))
    optimizer.load_state_dict(
        {
            "state": {**common, **{position: state for position, state in states.items() if state}},
            "param_groups": [
                {**group, "params": [next(positions) for _ in own]}
                for group, own in zip(description["groups"], ours)
            ],
        }
    )


def _read_states(
    reader: CheckpointReader, index: int, parameters: dict[str, torch.Tensor], kept: Collection[str] | None
) -> dict[str, dict[str, torch.Tensor]]:
    prefix = f"optimizer/{index}/"
    targets: dict[str, torch.Tensor] = {}
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, info in reader.tensors.items():
        if not key.startswith(prefix):
            continue
        name, _, state = key[len(prefix) :].rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"the checkpoint has optimizer state for {name!r}, which isn't trained here"
            )
        if kept is not None and name not in kept:
            continue
        parameter = parameters[name].detach()
        # Other states, such as step counts or Adafactor's rows and columns, don't have the parameter's layout.
        if info.shape == tuple(parameter.shape):
            target = torch.zeros_like(parameter, dtype=info.dtype)
        else:
            target = torch.zeros(info.shape, dtype=info.dtype)
        targets[key] = target
        states.setdefault(name, {})[state] = target
    reader.read(targets)
    return states
