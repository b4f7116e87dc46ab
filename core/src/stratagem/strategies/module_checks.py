"""Refuses modules that torch or a strategy can't train, before anything is set up."""

from __future__ import annotations

import torch
from torch import nn

from stratagem.errors import ConfigError

WITHOUT_SPARSE = ("nccl",)
"""Backends whose all_reduce takes no sparse tensors. torch's ProcessGroupNCCL refuses them even with one rank."""


def refuse_untrainable(module: nn.Module, device: torch.device, world_size: int, backend: str = "") -> None:
    """Refuse a module that would fail or train wrongly in the middle of a step or in a collective.

    Args:
        module: the user's module, about to be trained.
        device: the device on which it will be.
        world_size: number of processes.
        backend: of the process group for that device.

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
        if backend in WITHOUT_SPARSE and _is_sparse(submodule):
            raise ConfigError(
                f"{where}, has sparse gradients, which {backend} can't add up: make it with sparse=False, or "
                'give the strategy process_group_backend="gloo"'
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
    return ["sparse_gradients"] if any(map(_is_sparse, module.modules())) else []


def _is_sparse(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse and layer.weight.requires_grad
