"""What a program that poptorch compiles can't have, refused before it is compiled."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_sharding.torch_private import backward_hooks, is_compiled, post_accumulate_hooks
from torch import nn
from torch.optim import Optimizer

from stratagem import ConfigError, SetupRequest

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def refuse_loop(request: SetupRequest, parts: int) -> None:
    """Refuse what the loop or the module asks for.

    Args:
        request: as the `setup` hook received it.
        parts: of a batch, over all IPUs.

    Raises:
        ConfigError: says what, and what to do.
    """
    if request.steps is None:
        raise ConfigError(
            "ipu_strategy runs forward, backward and step as one program, and your own training loop calls them "
            "separately: train with stratagem.Trainer, or choose another strategy for this loop"
        )
    if "training_step" in request.steps.step_end_fns:
        raise ConfigError(
            "the module defines training_step_end, which would run outside of the program that computes the "
            "gradients: compute the loss in training_step"
        )
    if request.loop.accumulate > 1:
        raise ConfigError(
            f"accumulate_grad_batches={request.loop.accumulate} is not available, gradients never leave the device: "
            "make the batches larger, and have the IPU cut them by the strategy's gradient_accumulation"
        )
    for name, module in request.original_module.named_modules():
        if is_compiled(module):
            raise ConfigError(
                f"{name or type(module).__name__!r} is compiled by torch, and poptorch compiles the whole step "
                "itself: leave torch.compile out"
            )
        if parts > 1 and isinstance(module, _NORMS) and module.track_running_stats:
            raise ConfigError(
                f"{name!r} is a {type(module).__name__}, whose statistics would be of one of the {parts} parts of a "
                "batch: use nn.GroupNorm or nn.LayerNorm, or devices=1 without gradient_accumulation"
            )
    for name, parameter in request.original_module.named_parameters():
        if backward_hooks(parameter) or post_accumulate_hooks(parameter):
            raise ConfigError(
                f"{name!r} has a hook on its gradient, which never leaves the device: remove it, or choose another "
                "strategy"
            )


def refuse_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse optimizers whose states would stay on the device, where no checkpoint could read them.

    Args:
        optimizer: the user's only one.
        module: the user's.

    Raises:
        ConfigError: it isn't SGD without momentum over all trained parameters.
    """
    momentum = [group["momentum"] for group in optimizer.param_groups if group.get("momentum")]
    if type(optimizer) is not torch.optim.SGD or momentum:
        what = f"SGD with momentum={momentum[0]}" if momentum else type(optimizer).__name__
        raise ConfigError(
            f"{what} is not available on ipu_strategy: poptorch keeps an optimizer's states on the device under "
            "its own names, so that no checkpoint could have them; use torch.optim.SGD without momentum, or another "
            "strategy"
        )
    if any(group["maximize"] for group in optimizer.param_groups):
        raise ConfigError("SGD with maximize=True is not available on ipu_strategy: negate the loss")
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise ConfigError(
                f"{name!r} requires a gradient, but the optimizer doesn't have it, and poptorch's program steps all "
                "that do: set requires_grad = False, or give it to the optimizer"
            )


def refuse_batch(leaves: list[Any], parts: int) -> None:
    """Refuse a batch that can't be cut into `parts` equal ones, or isn't of tensors alone.

    Raises:
        ConfigError: says what to do.
    """
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            what = "a tensor without dims" if isinstance(leaf, torch.Tensor) else f"a {type(leaf).__name__}"
            raise ConfigError(
                f"a batch has {what}, and a program takes tensors of samples alone: leave it out in collate_fn"
            )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) != 1 or next(iter(sizes)) % parts:
        raise ConfigError(
            f"a batch has {', '.join(map(str, sorted(sizes)))} samples, which {parts} equal parts (devices × "
            f"gradient_accumulation) can't have: choose a batch size that {parts} divides, with drop_last=True"
        )
