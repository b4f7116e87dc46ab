"""Copies of sharded modules: their `copy.deepcopy` returns a plain module with whole parameters."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem_sharding.module_snapshot import ModuleSnapshot

__all__ = ["copies_as_before", "copies_whole"]


def copies_whole(root: nn.Module, snapshot: ModuleSnapshot, reshard: Callable[[], None]) -> None:
    """Let `copy.deepcopy` of a module and of its submodules return plain modules, without shards or strategy hooks.

    Averages of weights, such as `torch.optim.swa_utils.AveragedModel(model)`, are then plain modules. Copying is
    collective. `copies_as_before` undoes this.

    Args:
        root: the module.
        snapshot: of the module before it was sharded.
        reshard: frees gathered parameters, whose dtype may differ from that of the shards.
    """
    for module in root.modules():
        # patch: whole copies
        module.__dict__["__deepcopy__"] = partial(_copied, module, snapshot, reshard)


def copies_as_before(root: nn.Module) -> None:
    """Undo `copies_whole`."""
    for module in root.modules():
        module.__dict__.pop("__deepcopy__", None)


def _copied(
    module: nn.Module, snapshot: ModuleSnapshot, reshard: Callable[[], None], memo: dict[int, Any]
) -> nn.Module:
    reshard()
    cls, attributes = snapshot.original_of(module)
    # torch adds a `__deepcopy__` to the class of a parametrized module; it would copy the strategy's attributes too.
    is_torchs = is_parametrized(module) and "__deepcopy__" in vars(cls)
    if hasattr(cls, "__deepcopy__") and not is_torchs:
        return cls.__deepcopy__(module, memo)  # type: ignore[no-any-return]  # hasattr leaves it Any
    attributes.pop("__deepcopy__", None)
    made: nn.Module = cls.__new__(cls)
    memo[id(module)] = made
    made.__setstate__(copy.deepcopy(attributes, memo))  # type: ignore[no-untyped-call]  # torch has no types for it
    return made
