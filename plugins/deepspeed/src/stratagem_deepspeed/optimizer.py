"""The optimizer that the engine steps, as it was before the engine put flat shards into it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem import CheckpointError, CombinationError, SetupRequest
from stratagem.sdk.states import parameter_names

Groups = list[tuple[dict[str, Any], list[str]]]
"""The optimizer's groups, each with the names of its original parameters. The engine replaces the parameters."""


def client_optimizer(request: SetupRequest, engine_makes_it: bool) -> Optimizer | None:
    """Return the user's optimizer; None where the engine makes one, or nothing is trained.

    Raises:
        CombinationError: there are several, or its class overrides `zero_grad`, which the engine never calls.
    """
    if not request.loop.training or engine_makes_it:
        return None
    made = request.make_optimizers()
    if len(made) != 1:
        raise CombinationError(
            f"strategy deepspeed steps one optimizer, and there are {len(made)}: put their parameters into "
            "groups of one, or choose strategy fsdp or ddp"
        )
    kind = type(made[0])
    if kind.zero_grad is not Optimizer.zero_grad and not kind.__module__.startswith("deepspeed."):
        raise CombinationError(
            f"{kind.__name__} overrides zero_grad, and deepspeed drops gradients itself after each step: call what "
            "it does in your loop, or choose strategy fsdp or ddp"
        )
    return made[0]


def client_groups(
    original_module: nn.Module, optimizer: Optimizer | None, stage: int, engine: Any = None
) -> tuple[Groups, list[list[str]]]:
    """Note the names of the parameters in each group, and remove parameters that aren't trained from the groups.

    Args:
        original_module: the user's module.
        optimizer: the user's, before the engine gets it; or the engine's own.
        stage: the ZeRO stage; at 0, the groups stay unchanged, since the engine steps the parameters themselves.
        engine: pass it with the engine's own optimizer, which has one group of all trained parameters.

    Returns:
        All groups with all names; and the names of trained parameters per group, without empty groups.
    """
    if optimizer is None:
        return [], []
    if engine is not None:
        trained = [name for name, parameter in original_module.named_parameters() if parameter.requires_grad]
        return [(optimizer.param_groups[0], trained)], [trained]
    names = parameter_names(original_module)
    groups: Groups = []
    live: list[list[str]] = []
    for group in optimizer.param_groups:
        unknown = [parameter for parameter in group["params"] if id(parameter) not in names]
        if unknown:
            raise CheckpointError(
                f"{len(unknown)} parameters of {type(optimizer).__name__} aren't parameters of the module, so a "
                "checkpoint has no name for them: make them attributes of the module"
            )
        groups.append((group, [names[id(parameter)] for parameter in group["params"]]))
        trained_here = [parameter for parameter in group["params"] if parameter.requires_grad]
        if stage:
            group["params"] = trained_here
        if trained_here:
            live.append([names[id(parameter)] for parameter in trained_here])
    return groups, live


def repair_adagrad(engine: Any, stage: int) -> None:
    """Give the Adagrad instance that the engine creates the groups of the user's Adagrad, which the engine drops."""
    if not stage or not isinstance(engine.optimizer.optimizer, torch.optim.Adagrad):
        return
    own, client = engine.optimizer.optimizer, engine.basic_optimizer
    if own is not client:
        own.param_groups = client.param_groups
        client.state = own.state
