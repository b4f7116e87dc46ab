"""All private names of torch's modules that the trainer uses.

plugins/trainer/tests/test_torch_private.py fails if torch changes one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn


def child(module: nn.Module, name: str) -> Any:
    """Return the child of this name. `getattr(module, name)` would also work, but takes a microsecond more."""
    return module._modules[name]


def without_values(module: nn.Module, done: dict[int, nn.Module]) -> Any:
    """Copy the structure of a module, with tensors on the meta device and without hooks.

    Args:
        module: the module to copy.
        done: id of a module → its copy, for modules that were copied already.
    """
    if id(module) in done:
        return done[id(module)]
    copy: Any = object.__new__(type(module))
    done[id(module)] = copy
    copy.__dict__ = dict(module.__dict__)
    for name in vars(module):
        if name.startswith("_") and "hooks" in name and isinstance(vars(module)[name], dict):
            copy.__dict__[name] = OrderedDict()
    copy.__dict__["_parameters"] = {
        name: None if value is None else nn.Parameter(_empty(value), requires_grad=False)
        for name, value in module._parameters.items()
    }
    copy.__dict__["_buffers"] = {
        name: None if value is None else _empty(value) for name, value in module._buffers.items()
    }
    copy.__dict__["_modules"] = {
        name: None if child is None else without_values(child, done)
        for name, child in module._modules.items()
    }
    return copy


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")
