"""Shards of parameters and gradients in the hands of a user's code, between steps.

torch_xla's shards are flat, padded with zeros, and a process's own. Elementwise arithmetic is right on
them. A mean, a norm, an index or a comparison would be that of the shard, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from stratagem_sharding.whole_tensors.shard_arithmetic import (
    ABOUT_THE_TENSOR,
    ELEMENTWISE,
    GIVES_TENSORS,
    VIEW_ATTRIBUTES,
)
from torch import nn
from torch.optim import Optimizer

from stratagem.errors import ShardedUseError
from stratagem.sdk.torch_private import operation_name, without_subclass_functions

__all__ = ["ShardParameter", "ShardValues", "computing_with_shards", "hold_shards", "let_go", "stepping"]


class _Depth:
    # Per process: autograd has a separate thread for XLA devices, in which torch_xla adds to gradients.
    value = 0


@contextmanager
def computing_with_shards() -> Iterator[None]:
    """Around what this plugin, torch_xla and optimizers compute with shards, knowing that they are shards."""
    _Depth.value += 1
    try:
        yield
    finally:
        _Depth.value -= 1


class ShardValues(torch.Tensor):
    """A gradient of a shard, or what arithmetic on shards gave."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})


class ShardParameter(nn.Parameter):
    """A parameter's shard, as `named_parameters()` gives it between steps."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})


def hold_shards(shards: Iterable[Any]) -> None:
    """Let these shards refuse what they would answer for themselves alone, outside of `computing_with_shards`."""
    for shard in shards:
        # patch: xla shards
        shard.__class__ = ShardParameter


def let_go(shards: Iterable[Any]) -> None:
    """Make these shards plain parameters again."""
    for shard in shards:
        # patch: xla shards
        shard.__class__ = nn.Parameter


@contextmanager
def stepping(optimizer: Optimizer) -> Iterator[None]:
    """Around a call of `optimizer.step`: the class's own code computes with shards, the user's step hooks don't."""
    with ExitStack() as computing:

        def enter(*_: Any) -> None:
            computing.enter_context(computing_with_shards())

        # Registered for each step: after all hooks before the step, and before all hooks after it.
        before = optimizer.register_step_pre_hook(enter)
        after = optimizer.register_step_post_hook(lambda *_: computing.close())
        hooks: Any = after.hooks_dict_ref()
        hooks.move_to_end(after.id, last=False)
        try:
            yield
        finally:
            before.remove()
            after.remove()


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    name = operation_name(function)
    with without_subclass_functions():
        if _Depth.value:
            return function(*args, **kwargs)
        if function is torch.autograd.grad:
            raise ShardedUseError(
                "torch.autograd.grad() was asked for gradients of parameters of which this process has shards, under "
                "xla_fsdp with spmd=False, which reduces them in a backward alone: call runtime.backward(loss), or "
                "leave spmd=True"
            )
        reads_attribute = name.startswith("get ") and name[4:] not in VIEW_ATTRIBUTES
        about = reads_attribute or name.startswith("set ") or name in ABOUT_THE_TENSOR or name == "__repr__"
        if not about and name != "detach" and not _is_arithmetic(name, args, kwargs):
            raise ShardedUseError(
                f"{name.strip('_')}() was called on a parameter or a gradient of which this process has a shard, "
                "under xla_fsdp with spmd=False: use the parameter within its module's forward, runtime.clip for "
                "norms of gradients, a checkpoint for values, or leave spmd=True"
            )
        result = function(*args, **kwargs)
        if about and name not in GIVES_TENSORS:
            return result
        return _held(result)


def _is_arithmetic(name: str, args: Any, kwargs: Any) -> bool:
    if name not in ELEMENTWISE:
        return False
    return all(
        isinstance(each, (ShardParameter, ShardValues)) or each.dim() == 0
        for each in _tensors([*args, *kwargs.values()])
    )


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _held(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_held(each) for each in value)
    if isinstance(value, torch.Tensor) and not isinstance(value, (ShardParameter, ShardValues)):
        return value.as_subclass(ShardValues)
    return value
