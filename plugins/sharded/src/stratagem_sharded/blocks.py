"""Which parts of a module are gathered and reduced as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from stratagem import ConfigError

MIN_BLOCK_NUMEL = 100_000
"""Smaller members of a list go with the rest of the module: a collective of their own isn't worth it."""


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
        found = [each for entry in wanted for each in _instances(module, entry)]
    chosen = {id(block) for block in found if not _shares(block, module)}
    return [each for each in reversed(list(module.modules())) if id(each) in chosen and each is not module]


def _instances(module: nn.Module, wanted: type[nn.Module] | str) -> list[nn.Module]:
    instances = [
        each
        for each in module.modules()
        if (type(each).__name__ == wanted if isinstance(wanted, str) else isinstance(each, wanted))
    ]
    if not instances:
        name = wanted if isinstance(wanted, str) else wanted.__name__
        classes = sorted({type(each).__name__ for each in module.modules()})
        raise ConfigError(
            f"blocks names {name}, and the module has none; its modules are {', '.join(classes)}: name some of them"
        )
    return instances


def _members(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        for member in module:
            if isinstance(member, nn.ModuleList):  # has no forward of its own
                yield from _members(member)
            else:
                yield member
        return
    for child in module.children():
        yield from _members(child)


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shares(block: nn.Module, module: nn.Module) -> bool:
    inside = {id(each) for each in block.modules()}
    own = {id(parameter) for parameter in block.parameters()}
    return any(
        id(parameter) in own
        for each in module.modules()
        if id(each) not in inside
        for parameter in each.parameters(recurse=False)
    )
