"""Which parts of a module are gathered and reduced as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratagem_sharding.wrap_policy import modules_named, units_among
from torch import nn

MIN_BLOCK_NUMEL = 100_000
"""Smaller members of a list go with the rest of the module: a separate collective costs more than it saves."""


def blocks_in(module: nn.Module, wanted: Sequence[type[nn.Module] | str] | None) -> list[nn.Module]:
    """Return the submodules whose gradients are reduced as soon as their own backward is done.

    Args:
        module: the user's.
        wanted: classes or their names; None takes the members of the outermost `nn.ModuleList`s and
            `nn.Sequential`s that have at least `MIN_BLOCK_NUMEL` parameters.

    Returns:
        Inner ones before outer ones. A block that shares a parameter with the rest of the module is left
        out, for that parameter has to be gathered with the rest.

    Raises:
        ConfigError: there is no module of a class in `wanted`.
    """
    if wanted is None:
        found = [block for block in _members(module) if _numel(block) >= MIN_BLOCK_NUMEL]
    else:
        found = modules_named(module, wanted, "blocks")
    return units_among(module, found)


def _members(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        for member in module:
            if isinstance(member, nn.ModuleList):  # has no forward
                yield from _members(member)
            else:
                yield member
        return
    for child in module.children():
        yield from _members(child)


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
