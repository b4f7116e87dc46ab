"""What this plugin uses of torch that torch keeps private in addition to that of `stratagem_sharding.torch_private`.

All of it, each with the reason.

plugins/pipeline/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

BATCH_NORM: Any = _BatchNorm
"""The base of BatchNorm1d, 2d, 3d and SyncBatchNorm, which have no public one in common."""
KEPT_FORWARD = "_orig_forward"
"""Where `torch.distributed.pipelining` keeps the forward of a split point, and leaves it."""


def leaves(value: Any) -> list[Any]:
    """Return what is in the containers of a graph's output, by the function that torch.export flattens it by."""
    return list(tree_leaves(value))


def forget_split_point(module: nn.Module) -> None:
    """Take off what `torch.distributed.pipelining` put on a split point in addition to its forward."""
    module.__dict__.pop(KEPT_FORWARD, None)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd has it as a view of another; `Tensor._base` is the only other name for that."""
    return tensor._is_view()


def forward_hooks(module: nn.Module) -> list[int]:
    """Return the numbers of the hooks that are called after its forward."""
    return list(module._forward_hooks)


def forward_pre_hooks(module: nn.Module) -> list[int]:
    """Return the numbers of the hooks that are called before its forward."""
    return list(module._forward_pre_hooks)


def own_call(module: nn.Module) -> Callable[..., Any] | None:
    """What is called in place of a module's forward and its hooks: what `Module.compile` made, for one."""
    call: Callable[..., Any] | None = module.__dict__.get("_compiled_call_impl")
    return call


def set_own_call(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Set what `own_call` returns; None: the forward and its hooks."""
    if call is None:
        module.__dict__.pop("_compiled_call_impl", None)
    else:
        # patch: pipelined layers
        module.__dict__["_compiled_call_impl"] = call
