"""Private names of torch that every strategy needs, each with the reason.

tests/core/strategies/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes in which a tensor keeps the hooks of `register_hook` and `register_post_accumulate_grad_hook`, as dicts.
A handle removes its hook from the dict object. A tensor that replaces another must therefore share the dict, which
torch has no public way to read."""


without_subclass_functions = torch._C.DisableTorchFunctionSubclass
"""A context in which `__torch_function__` of tensor subclasses isn't called.

torch's page on extending PyTorch names it by this private path, and nothing else does the same.
"""


def operation_name(function: Callable[..., Any]) -> str:
    """Return the name of a function that `__torch_function__` got; "get NAME" or "set NAME" for an attribute.

    For an attribute, the function is `__get__` or `__set__` of its descriptor. torch has no public way to get the
    attribute's name from these.
    """
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        owner: Any = getattr(function, "__self__", None)
        return f"{name.strip('_')} {getattr(owner, '__name__', '')}"
    return name


def multiply_(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply tensors in place by a scalar tensor, in one operation per device, dtype and layout.

    `torch._foreach_mul_` has no public name; torch's optimizers and its clipping use it. One call per tensor costs
    more than the multiplication.
    """
    by_kind: dict[tuple[torch.device, torch.dtype, torch.layout], list[torch.Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.device, tensor.dtype, tensor.layout), []).append(tensor)
    for (device, dtype, layout), alike in by_kind.items():
        there = factor.to(device)
        if layout is torch.strided and (dtype.is_floating_point or dtype.is_complex):
            torch._foreach_mul_(alike, there)
        else:
            for tensor in alike:
                tensor.mul_(there)


def tensor_version(tensor: torch.Tensor) -> int:
    """Return how often a tensor or one of its views has been written to in place.

    torch's notes on autograd document `_version`. No public name detects a write without reading the values.
    """
    return tensor._version
