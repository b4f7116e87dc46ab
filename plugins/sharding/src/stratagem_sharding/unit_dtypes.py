"""Refuse units of several dtypes: the gradients of a unit are sent in one message."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from stratagem.errors import ConfigError
from stratagem_sharding.deferred_init import own_modules
from stratagem_sharding.torch_private import own_parameters

__all__ = ["refuse_mixed_dtypes"]


def refuse_mixed_dtypes(
    unit: nn.Module, inner: Collection[nn.Module], original_module: nn.Module, advice: str
) -> None:
    """Refuse a unit whose trained parameters have several dtypes, such as complex and real ones.

    Args:
        unit: the module that is about to be sharded.
        inner: units within it that are sharded already.
        original_module: the user's module; the message uses its names of parameters.
        advice: what to change, as the end of the message.

    Raises:
        ConfigError: there are several dtypes. The message names a parameter of each.
    """
    names = {id(parameter): name for name, parameter in original_module.named_parameters()}
    first: dict[torch.dtype, str] = {}
    for module in own_modules(unit, set(inner)):
        for name, parameter in own_parameters(module).items():
            # A parameter without dimensions isn't sharded.
            if parameter is not None and parameter.requires_grad and parameter.dim():
                first.setdefault(parameter.dtype, names.get(id(parameter), name))
    if len(first) > 1:
        both = " and ".join(f"{name!r} is {dtype}" for dtype, name in list(first.items())[:2])
        raise ConfigError(f"{both}, and gradients of one sharded unit travel in one dtype: {advice}")
