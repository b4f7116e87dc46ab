"""Modules on their way to an XLA device."""

from __future__ import annotations

import torch
from torch import nn


def moved(module: nn.Module, device: torch.device) -> nn.Module:
    """Move `module` in place and return it; what was one tensor under two names stays one.

    On its way from another kind of device a parameter becomes a new one, once for each of its names.
    """
    uses = _uses(module)
    module.to(device)
    for places in uses.values():
        owner, kind, name = places[0]
        first = getattr(owner, kind)[name]
        for owner, kind, name in places[1:]:
            getattr(owner, kind)[name] = first
    return module


def _uses(module: nn.Module) -> dict[int, list[tuple[nn.Module, str, str]]]:
    """By id of a parameter or buffer: where it is."""
    uses: dict[int, list[tuple[nn.Module, str, str]]] = {}
    for owner in module.modules():
        for kind in ("_parameters", "_buffers"):
            for name, tensor in getattr(owner, kind).items():
                if tensor is not None:
                    uses.setdefault(id(tensor), []).append((owner, kind, name))
    return uses
