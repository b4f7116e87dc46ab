"""Copies of sharded modules: `copy.deepcopy` of one returns the plain module with whole parameters."""

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
    """Let `copy.deepcopy` of a module, and of each module in it, return a plain one: no shards, no strategy's hooks.

    So an average of weights is a module like any other: `torch.optim.swa_utils.AveragedModel(model)`. Copying is
    collective. `copies_as_before` takes it away.

    Args:
        root: the module.
        snapshot: of it as it was before it was sharded.
        reshard: frees gathered copies, which may be of another dtype than the parameters.
    """
    for module in root.modules():
        # patch: whole copies
        module.__dict__["__deepcopy__"] = partial(_copied, module, snapshot, reshard)


def copies_as_before(root: nn.Module) -> None:
    """Take away what `copies_whole` put on the modules."""
    for module in root.modules():
        module.__dict__.pop("__deepcopy__", None)


def _copied(
    module: nn.Module, snapshot: ModuleSnapshot, reshard: Callable[[], None], memo: dict[int, Any]
) -> nn.Module:
    reshard()
    cls, attributes = snapshot.original_of(module)
    # torch gives the class of a parametrized module a `__deepcopy__` that would copy the strategy's attributes too.
    is_torchs = is_parametrized(module) and "__deepcopy__" in vars(cls)
    if hasattr(cls, "__deepcopy__") and not is_torchs:
        return cls.__deepcopy__(module, memo)  # type: ignore[no-any-return]  # hasattr leaves it Any
    attributes.pop("__deepcopy__", None)
    made: nn.Module = cls.__new__(cls)
    memo[id(module)] = made
    made.__setstate__(copy.deepcopy(attributes, memo))  # type: ignore[no-untyped-call]  # torch has no types for it
    return made
