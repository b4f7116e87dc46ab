"""`ParameterLedger`: carries hooks, attributes and references of parameters over to their replacements.

A strategy may replace parameters in `setup`: by shards, by parts of layers that ranks divide, or by tensors that are
constructed later. Whatever the user's code has set on the old parameters must hold for the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.errors import CombinationError, ConfigError
from stratagem.strategies.torch_private import PARAMETER_HOOKS


@dataclass(frozen=True)
class _Entry:
    """A parameter before `setup`. The reference is weak, so that a replaced parameter can be freed."""

    parameter: ref[nn.Parameter]
    shape: torch.Size
    requires_grad: bool
    attributes: dict[str, Any]
    hooks: dict[str, Any]
    """Attribute → its dict of hooks, from `register_hook` or `register_post_accumulate_grad_hook`."""
    tied_to: str
    """The first name of the parameter."""


class ParameterLedger:
    """A module's parameters by name, as the user made them. Create it before the `setup` hook is called.

    Args:
        module: the user's module.
        world_size: number of ranks; with several, optimizers may only have parameters of the module.
    """

    def __init__(self, module: nn.Module, world_size: int) -> None:
        self._module, self._world_size = module, world_size
        self._entries: dict[str, _Entry] = {}
        first: dict[int, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._entries[name] = _Entry(
                ref(parameter),
                _shape(parameter),
                parameter.requires_grad,
                dict(vars(parameter)),
                {slot: hooks for slot in PARAMETER_HOOKS if (hooks := getattr(parameter, slot))},
                first.setdefault(id(parameter), name),
            )

    # While optimizers are made ----------------------------------------------------------------------

    def carry_over(self) -> None:
        """Carry over to new parameters what the old ones had, and put new ones into lists in the module's attributes.

        Called as soon as the strategy has replaced parameters. Further calls do no harm.
        """
        seen: set[int] = set()
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            entry = self._entries.get(name)
            if entry is None or entry.parameter() is parameter or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if parameter.requires_grad != entry.requires_grad:
                parameter.requires_grad_(entry.requires_grad)
            for key, value in entry.attributes.items():
                if key not in vars(parameter):
                    setattr(parameter, key, value)
            for slot, hooks in entry.hooks.items():
                # Share the dict: the user's handles remove hooks from it.
                setattr(parameter, slot, hooks)
        stale = self._stale()
        if stale:
            for module in self._module.modules():
                for key, value in list(vars(module).items()):
                    if not key.startswith("_") and _mentions(value, stale):
                        setattr(module, key, _renewed(value, stale))

    def claim(self, optimizers: Sequence[Optimizer]) -> None:
        """Replace old parameters in `optimizers` by the module's current ones.

        Raises:
            ConfigError: with several processes, an optimizer steps a tensor that isn't a parameter of the module.
        """
        stale = self._stale()
        own = {id(parameter) for parameter in self._module.parameters()}
        for optimizer in optimizers:
            _renew_attributes(optimizer, stale)
            for group in optimizer.param_groups:
                for index, parameter in enumerate(group["params"]):
                    current = stale.get(id(parameter))
                    if current is not None:
                        group["params"][index] = current
                        if parameter in optimizer.state:
                            optimizer.state[current] = optimizer.state.pop(parameter)
                    elif id(parameter) not in own and self._world_size > 1:
                        raise ConfigError(
                            f"{type(optimizer).__name__} steps a tensor of shape {tuple(parameter.shape)} that isn't "
                            f"a parameter of {type(self._module).__name__}, so that its gradients would not be "
                            f"reduced over the {self._world_size} ranks: make it a parameter of the module, as in "
                            "self.scale = nn.Parameter(...)"
                        )

    # After the hook ---------------------------------------------------------------------------------

    def check(self, carries_hooks: bool) -> None:
        """Refuse a module whose parameters have lost something that the user set.

        Args:
            carries_hooks: whether the strategy has moved hooks of replaced parameters to the tensors that accumulate
                gradients. Otherwise hooks on a sharded parameter are never called, and are refused.

        Raises:
            CombinationError: names the parameter, and what it has lost.
        """
        current = dict(self._module.named_parameters(remove_duplicate=False))
        for name, entry in self._entries.items():
            parameter = current.get(name)
            if parameter is None:
                raise self._lost(name, "its place in the module")
            if parameter.requires_grad != entry.requires_grad:
                raise self._lost(name, f"requires_grad={entry.requires_grad}")
            for key in entry.attributes.keys() - vars(parameter).keys():
                raise self._lost(name, f"its attribute {key!r}")
            if parameter is not current.get(entry.tied_to):
                raise self._lost(name, f"its tie to {entry.tied_to!r}")
            replaced = entry.parameter() is not parameter
            is_shard = hasattr(parameter, "placements") or _shape(parameter) != entry.shape
            if entry.hooks and replaced and is_shard and not carries_hooks:
                raise self._lost(name, "its hooks (register_hook, register_post_accumulate_grad_hook)")

    def replaced(self) -> list[ref[nn.Parameter]]:
        """Return replaced parameters that still exist: code outside the module may use them."""
        current = dict(self._module.named_parameters(remove_duplicate=False))
        return [
            entry.parameter
            for name, entry in self._entries.items()
            if name in current and (kept := entry.parameter()) is not None and kept is not current[name]
        ]

    def _lost(self, name: str, what: str) -> CombinationError:
        return CombinationError(
            f"the strategy replaced parameter {name!r} of {type(self._module).__name__}, which has lost {what}: "
            "leave that out, or choose a strategy that keeps parameters, such as ddp"
        )

    def _stale(self) -> dict[int, nn.Parameter]:
        """Id of a replaced parameter that is still referenced → its replacement."""
        stale = {}
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            entry = self._entries.get(name)
            before = entry.parameter() if entry is not None else None
            if before is not None and before is not parameter:
                stale[id(before)] = parameter
        return stale


def _shape(parameter: nn.Parameter) -> torch.Size:
    return torch.Size() if nn.parameter.is_lazy(parameter) else parameter.shape


def _tensors(value: Any) -> Iterator[nn.Parameter]:
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _renew_attributes(optimizer: Optimizer, stale: dict[int, nn.Parameter]) -> None:
    """Replace stale parameters in an optimizer's attributes other than its groups and state."""
    for key, value in list(vars(optimizer).items()):
        if key not in ("param_groups", "state") and _mentions(value, stale):
            vars(optimizer)[key] = _renewed(value, stale)


def _mentions(value: Any, stale: dict[int, nn.Parameter]) -> bool:
    return any(id(parameter) in stale for parameter in _tensors(value))


def _renewed(value: Any, stale: dict[int, nn.Parameter]) -> Any:
    """Return `value` with stale parameters replaced. Lists and dicts are changed in place."""
    if isinstance(value, nn.Parameter):
        return stale.get(id(value), value)
    if isinstance(value, dict):
        value.update({key: _renewed(each, stale) for key, each in value.items()})
    elif isinstance(value, list):
        value[:] = [_renewed(each, stale) for each in value]
    elif isinstance(value, tuple):
        renewed = [_renewed(each, stale) for each in value]
        return type(value)(*renewed) if hasattr(value, "_fields") else type(value)(renewed)
    return value
