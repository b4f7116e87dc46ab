"""Finds the submodule that becomes the pipeline."""

from __future__ import annotations

from torch import nn

from stratagem import ConfigError


def pipelined_module(original_module: nn.Module, name: str | None, *, traced: bool) -> tuple[str, nn.Module]:
    """Find the pipelined module, and its name in `original_module`.

    Args:
        original_module: the user's module.
        name: as the user gave it; None for the one outermost `nn.Sequential` of at least two layers, or, if there
            is no Sequential, the one outermost `nn.ModuleList`.
        traced: whether the module is traced; it may then have any class.

    Raises:
        ConfigError: there is no such module, there are several, or the named module has another class.
    """
    if name is None:
        return _only_child(original_module) if traced else _only_stack(original_module)
    try:
        module = original_module.get_submodule(name)
    except AttributeError:
        names = ", ".join(child for child, _ in original_module.named_children()) or "none"
        raise ConfigError(
            f"pipeline_module={name!r} names no submodule of {type(original_module).__name__}; it has {names}"
        ) from None
    if not traced and not isinstance(module, (nn.Sequential, nn.ModuleList)):
        raise ConfigError(
            f"pipeline_module={name!r} is a {type(module).__name__}, neither an nn.Sequential nor an nn.ModuleList: "
            "write it as one, or give split_points=[…], the submodules at which stages begin, to have it traced"
        )
    return name or type(original_module).__name__, module


def _only_stack(original_module: nn.Module) -> tuple[str, nn.Module]:
    kind, outermost = "nn.Sequential", _outermost(original_module, nn.Sequential)
    if not outermost:
        kind, outermost = "nn.ModuleList", _outermost(original_module, nn.ModuleList)
    if len(outermost) == 1:
        name, module = outermost[0]
        return name or type(original_module).__name__, module
    if outermost:
        raise ConfigError(
            f"{type(original_module).__name__} has {len(outermost)} {kind}s that could be the pipeline, "
            f"{', '.join(name for name, _ in outermost)}: name one by pipeline_module"
        )
    raise ConfigError(
        f"{type(original_module).__name__} has no nn.Sequential of at least two layers to be the pipeline, nor an "
        "nn.ModuleList: write its layers as one, or give split_points=[…], the submodules at which stages begin, to "
        "have it traced"
    )


def _outermost(
    original_module: nn.Module, kind: type[nn.Sequential | nn.ModuleList]
) -> list[tuple[str, nn.Module]]:
    found = [
        (name, module)
        for name, module in original_module.named_modules()
        if isinstance(module, kind) and len(module) > 1
    ]
    return [(name, module) for name, module in found if not any(_contains(other, name) for other, _ in found)]


def _only_child(original_module: nn.Module) -> tuple[str, nn.Module]:
    children = list(original_module.named_children())
    if len(children) == 1:
        return children[0]
    raise ConfigError(
        f"{type(original_module).__name__} has {len(children)} submodules, "
        f"{', '.join(name for name, _ in children) or 'none'}: name the one to be traced by pipeline_module"
    )


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))
