"""Applies plans of names and styles to modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Union

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem import ConfigError
from stratagem_model_parallel.mesh import TENSOR
from stratagem_model_parallel.styles import Style, style_for
from stratagem_model_parallel.torch_private import apply_style

Plan = Union[Mapping[str, Style], Callable[[nn.Module, DeviceMesh], Any], None]
"""Names of modules → styles; or a function of the module and the mesh that returns such a dict, or splits the module
itself."""


def carry_out(plan: Plan, root: nn.Module, mesh: DeviceMesh) -> None:
    """Split the modules of `root` by `plan`. Not collective, unless a function in the plan is.

    Args:
        plan: not None.
        root: the user's module, whose names a plan uses.
        mesh: ("data", "tensor").

    Raises:
        ConfigError: the plan is invalid, or names a module that doesn't exist.
    """
    if callable(plan):
        plan = returned(plan(root, mesh), root, getattr(plan, "__qualname__", repr(plan)))
    if not isinstance(plan, Mapping):
        raise ConfigError(
            f"parallelize={plan!r} is a {type(plan).__name__}: give a dict of module names and styles, or a function "
            "of (module, mesh)"
        )
    for pattern, style in plan.items():
        for name, module in modules_like(pattern, root):
            apply(style_for(style, name, module), module, mesh)


def returned(value: Any, root: nn.Module, who: str) -> Mapping[str, Style]:
    """Check a user's function's result: names and styles, or None if it split the module itself.

    Raises:
        ConfigError: something else.
    """
    if value is None or value is root:
        return {}
    if isinstance(value, Mapping):
        return value
    raise ConfigError(
        f"{who} returned a {type(value).__name__}: return a dict of module names and styles, or None after splitting "
        "the module in place"
    )


def apply(style: Any, module: nn.Module, mesh: DeviceMesh) -> None:
    """Split one module over the mesh's tensor dimension; values aren't sent."""
    style.src_data_rank = None
    apply_style(style, module, mesh[TENSOR])


def modules_like(pattern: str, root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules whose names fit `pattern`; "*" stands for anything between two dots.

    Raises:
        ConfigError: none does.
    """
    wanted = str(pattern).split(".")
    names = dict(root.named_modules(remove_duplicate=False))
    found = []
    for name, module in names.items():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            found.append((name, module))
    if not found:
        close = get_close_matches(pattern, [name for name in names if name], 3, 0.0)
        raise ConfigError(
            f"the plan names {pattern!r}, and {type(root).__name__} has no such module: the closest are "
            f"{', '.join(map(repr, close)) or 'none'}"
        )
    # A module with several names is split once.
    return list({id(module): (name, module) for name, module in reversed(found)}.values())[::-1]
