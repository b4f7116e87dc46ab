"""Modules on their way to an XLA device."""

from __future__ import annotations

import torch
from stratagem_sharding.torch_private import own_table, own_tensors
from torch import nn


def moved(module: nn.Module, device: torch.device) -> nn.Module:
    """Move `module` in place and return it; what was one tensor under two names stays one.

    On its way from another kind of device a parameter becomes a new one, once for each of its names.
    """
    uses = _uses(module)
    module.to(device)
    for places in uses.values():
        owner, name = places[0]
        first = own_table(owner, name)[name]
        for owner, name in places[1:]:
            own_table(owner, name)[name] = first
    return module


def _uses(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Return parameter or buffer id → its places."""
    uses: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, tensor in own_tensors(owner):
            uses.setdefault(id(tensor), []).append((owner, name))
    return uses
