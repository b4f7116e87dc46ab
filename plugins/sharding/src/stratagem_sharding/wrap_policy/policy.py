"""Wrap policies: which modules of a model are units. Units are gathered, used and freed one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Union

from torch import nn

from stratagem.errors import ConfigError
from stratagem_sharding.torch_private import modules_by_policy

Policy = Union[Callable[..., Any], Iterable[Union[type[nn.Module], str]], None]
"""None, classes or names of classes, or one of torch's wrap policies."""

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""These classes have no forward: they are never called and can't be units."""


def modules_named(root: nn.Module, policy: Policy, what: str = "auto_wrap_policy") -> list[nn.Module]:
    """Return the callable modules below `root` that a policy selects.

    Without a policy these are the blocks: the elements of every ModuleList, and the elements of a Sequential that
    have children themselves.

    Args:
        root: the whole module; never part of the result.
        policy: as the user gave it.
        what: the option's name, for errors.

    Raises:
        ConfigError: the policy is invalid, or selects no module of this model.
    """
    named = _named_by(root, policy, what)
    return [module for module in named if module is not root and not isinstance(module, CONTAINERS)]


def callable_children(root: nn.Module) -> list[nn.Module]:
    """Return the modules that `root` itself may call: its children, and the elements of its containers."""
    parts: list[nn.Module] = []
    for child in root.children():
        parts += callable_children(child) if isinstance(child, CONTAINERS) else [child]
    return parts


def units_among(root: nn.Module, candidates: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the candidates that can be gathered separately, inner ones first.

    Modules without parameters, and modules that share a parameter with a module outside of them, are no units of
    their own. They belong to the unit that contains them.
    """
    order = {module: position for position, module in enumerate(root.modules())}
    sharing = _uses(root)
    units = [module for module in dict.fromkeys(candidates) if _stands_alone(module, sharing)]
    return sorted(units, key=lambda module: -order[module])


def _uses(root: nn.Module) -> Counter[int]:
    """Return the number of modules in `root` that have each parameter, by the parameter's id."""
    return Counter(id(each) for module in root.modules() for each in module.parameters(recurse=False))


def _stands_alone(module: nn.Module, sharing: Counter[int]) -> bool:
    within = _uses(module)
    return bool(within) and all(sharing[parameter] == count for parameter, count in within.items())


def _named_by(root: nn.Module, policy: Policy, what: str) -> list[nn.Module]:
    if policy is None:
        return _blocks(root)
    named = modules_by_policy(policy, root)
    if named is not None:
        return named
    if callable(policy) and not isinstance(policy, type):
        found: list[nn.Module] = []
        _descend(root, policy, found, what)
        return found
    return _of_classes(root, policy, what)


def _blocks(root: nn.Module) -> list[nn.Module]:
    found = []
    for module in root.modules():
        if isinstance(module, nn.ModuleList):
            found += list(module)
        elif isinstance(module, nn.Sequential):
            found += [child for child in module if next(child.children(), None) is not None]
    return list(dict.fromkeys(found))


def _descend(module: nn.Module, policy: Callable[..., Any], found: list[nn.Module], what: str) -> int:
    """Apply a policy of the form `policy(module, recurse, nonwrapped_numel)`; return the number of elements in units.

    `torch.distributed.fsdp.wrap.size_based_auto_wrap_policy` and related policies have this form. With
    `recurse=True` they return whether to look at the children. With `recurse=False` they return whether the elements
    that are in no unit yet make the module a unit.
    """
    total = sum(parameter.numel() for parameter in module.parameters())
    try:
        if not policy(module=module, recurse=True, nonwrapped_numel=total):
            return 0
        inside = sum(_descend(child, policy, found, what) for child in module.children())
        if not policy(module=module, recurse=False, nonwrapped_numel=total - inside):
            return inside
    except TypeError as error:
        raise ConfigError(
            f"{what}={policy!r} can't be asked as policy(module=..., recurse=..., nonwrapped_numel=...): {error}; "
            "give a policy of torch.distributed.fsdp.wrap, or module classes"
        ) from error
    found.append(module)
    return total


def _of_classes(root: nn.Module, policy: Any, what: str) -> list[nn.Module]:
    given = [policy] if isinstance(policy, (str, type)) else list(policy)
    found: list[nn.Module] = []
    for each in given:
        if isinstance(each, str):
            matching = [module for module in root.modules() if type(module).__name__ == each]
        elif isinstance(each, type) and issubclass(each, nn.Module):
            matching = [module for module in root.modules() if isinstance(module, each)]
        else:
            raise ConfigError(
                f"{what} has {each!r}: give module classes, their names, or a policy of torch.distributed.fsdp.wrap"
            )
        if not matching:
            names = sorted({type(module).__name__ for module in root.modules() if module is not root})
            name = each if isinstance(each, str) else each.__name__
            raise ConfigError(f"{what} names {name!r}, and this model has none: it has {', '.join(names)}")
        found += matching
    return list(dict.fromkeys(found))
