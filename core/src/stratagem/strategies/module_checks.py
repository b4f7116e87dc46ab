"""What a module has that torch, or a strategy, can't train as it is: refused before anything is set up."""

from __future__ import annotations

import torch
from torch import nn

from stratagem.errors import ConfigError


def refuse_untrainable(module: nn.Module, device: torch.device, world_size: int) -> None:
    """Refuse what would end in an error of torch's, in the middle of a step or in a collective.

    Args:
        module: the user's module, about to be trained.
        device: where it is going to be.
        world_size: number of processes.

    Raises:
        ConfigError: says which submodule, and what to do.
    """
    for name, submodule in module.named_modules():
        where = f"{name!r}, a {type(submodule).__name__}" if name else f"the {type(submodule).__name__}"
        if isinstance(submodule, nn.SyncBatchNorm) and device.type == "cpu" and submodule.training:
            raise ConfigError(
                f"{where}, can't be trained on a CPU, where torch has no such layer: use nn.BatchNorm1d or its "
                "siblings, whose statistics are each process's own, or train on a GPU"
            )
        if world_size > 1:
            if isinstance(submodule, (nn.Embedding, nn.EmbeddingBag)) and submodule.max_norm is not None:
                raise ConfigError(
                    f"{where}, has max_norm={submodule.max_norm:g}: its forward changes the rows of this rank's "
                    "batch, which other ranks don't change: leave max_norm out, and renormalize all rows after a "
                    f"step, as by weight.data.renorm_(2, 0, {submodule.max_norm:g})"
                )
            own = (*submodule.named_parameters(recurse=False), *submodule.named_buffers(recurse=False))
            for kind, tensor in own:
                if nn.parameter.is_lazy(tensor):
                    raise ConfigError(
                        f"{where}, has {kind!r} uninitialized, which ranks can't agree on: run one batch through the "
                        "module where it is made, or give the layer its sizes"
                    )


def needed_features(module: nn.Module) -> list[str]:
    """Return which of `FEATURES` a strategy must have to train the module."""
    sparse = any(
        isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse and each.weight.requires_grad
        for each in module.modules()
    )
    return ["sparse_gradients"] if sparse else []
