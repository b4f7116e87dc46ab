"""Refuses gradients of gradients: torch's collectives between split layers silently drop them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stratagem.errors import ShardedUseError
from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel.kinds import is_split


def refuse_second_gradients(root: nn.Module) -> None:
    """Register hooks that raise when a backward through a split layer of `root` uses create_graph.

    Raises:
        ShardedUseError: later, in the backward, as by `torch.autograd.grad(..., create_graph=True)`.
    """
    for module in root.modules():
        if any(is_split(parameter) for parameter in module.parameters(recurse=False)):
            module.register_forward_hook(_watch)


def _watch(module: nn.Module, args: Any, output: Any) -> None:
    if torch.is_grad_enabled():
        map_tensors(_watched, output)


def _watched(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor.register_hook(_check)  # type: ignore[no-untyped-call]  # torch has no types for it
    return tensor


def _check(grad: torch.Tensor) -> None:
    if torch.is_grad_enabled():
        raise ShardedUseError(
            "a gradient was taken with create_graph=True through layers that model_parallel has split, and torch "
            "can't differentiate their gradients again: leave these layers out of the plan, or choose ddp, or fsdp "
            "with auto_wrap_policy=[]"
        )
