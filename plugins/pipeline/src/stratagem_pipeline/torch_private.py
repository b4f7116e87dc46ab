"""Private names of torch that this plugin uses, in addition to those in `stratagem_sharding.torch_private`.

Each has its reason.

plugins/pipeline/tests/test_torch_private.py fails when torch changes one, or offers a public API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

BATCH_NORM: Any = _BatchNorm
"""The common base class of BatchNorm1d, 2d, 3d and SyncBatchNorm. There is no public one."""
KEPT_FORWARD = "_orig_forward"
"""Attribute in which `torch.distributed.pipelining` stores the forward of a split point. It never removes it."""


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a graph's output, with the function that torch.export uses to flatten it."""
    return list(tree_leaves(value))


def forget_split_point(module: nn.Module) -> None:
    """Remove the attribute that `torch.distributed.pipelining` leaves on a split point."""
    module.__dict__.pop(KEPT_FORWARD, None)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd treats a tensor as a view. `Tensor._base`, the only other name for that, is private, too."""
    return tensor._is_view()


def forward_hooks(module: nn.Module) -> list[int]:
    """Return the ids of a module's forward hooks."""
    return list(module._forward_hooks)


def forward_pre_hooks(module: nn.Module) -> list[int]:
    """Return the ids of a module's forward pre-hooks."""
    return list(module._forward_pre_hooks)


def own_call(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function that replaces a call of a module with its hooks, as set by `Module.compile`; else None."""
    call: Callable[..., Any] | None = module.__dict__.get("_compiled_call_impl")
    return call


def set_own_call(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Set the function that `own_call` returns; None restores the ordinary call."""
    if call is None:
        module.__dict__.pop("_compiled_call_impl", None)
    else:
        # patch: pipelined layers
        module.__dict__["_compiled_call_impl"] = call
