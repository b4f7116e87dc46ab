"""What this plugin uses of torch_xla and torch that they keep private, and which methods of theirs it replaces.

Each with the reason; what several plugins use of torch is in `stratagem.sdk.torch_private`.
plugins/xla/tests/engine/test_xla_private.py fails when torch_xla changes one. Imports torch_xla in functions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PATCHED = ("forward", "_nn_linear_forward_original")
"""What is set on modules: by us, to lead calls through a wrapper; by torch_xla, on every Linear."""
NO_PATCHED_LINEAR = {"_use_xla_patched_linear": False}
"""Option of a wrapper: its own backward of a Linear knows no autocast."""
REPLACED = ("_rebuild_full_params", "_free_full_params", "assert_state")
"""Methods of `XlaFullyShardedDataParallel` that its objects get others in the place of. It has no hook around its
gathering, and leaves modules with an empty copy of a parameter, which a user's code looks at without an error."""


def replace(wrapper: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Have `method` called in the place of one of `REPLACED`; return the wrapper's own."""
    original: Callable[..., Any] = getattr(wrapper, name)
    # patch: xla wrapper
    setattr(wrapper, name, method)
    return original


def restore(wrapper: Any) -> None:
    """Give a wrapper its class's methods again."""
    for name in REPLACED:
        del vars(wrapper)[name]


def is_gathered(copy: Any) -> bool:
    """Whether a wrapper's copy of a parameter is whole."""
    return bool(copy._has_full_param)


def free(wrapper: Any) -> None:
    """Free what a forward gathered and no backward freed; a wrapper has no other way."""
    wrapper._free_full_params(apply_opt_barrier=False)


def register_hooks(wrapper: Any) -> None:
    """Have a wrapper reduce gradients of a parameter that required none when its forward began."""
    wrapper._register_post_backward_hooks()


def whole_shape(shard: Any) -> torch.Size:
    """Return the shape of the parameter that a wrapper sharded."""
    shape: torch.Size = shard._orig_size
    return shape


def empty(copy: torch.Tensor, wrapper: Any) -> None:
    """Let a copy's memory go, by the very call of torch_xla's wrapper; it looks empty to Python before and after."""
    from torch_xla import _XLAC

    _XLAC._replace_xla_tensor(copy, wrapper._dummy_data_placeholder)


def numbers_of(tensor: torch.Tensor) -> tuple[int, str]:
    """Return a tensor's number, and that of its values.

    The second also changes by `.data.copy_`, which no version counts, and when work is sent off.
    """
    from torch_xla import _XLAC

    return _XLAC._xla_get_tensor_id(tensor), _XLAC._unique_id_for_ir_and_data(tensor)


def sharding_spec(tensor: torch.Tensor) -> str:
    """Return the sharding that a tensor is marked with. Only `mark_sharding`, which sets it, is public."""
    from torch_xla import _XLAC

    spec: str = _XLAC._get_xla_sharding_spec(tensor)
    return spec


def module_hooks(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Return a module's backward hooks: torch_xla registers some, and gives no one their handles."""
    hooks: dict[int, Callable[..., Any]] = module._backward_hooks
    return hooks
