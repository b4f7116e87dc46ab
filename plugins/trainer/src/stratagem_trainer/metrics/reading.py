"""Reads numbers from a device, with one wait for many."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the number in each tensor; those of one device and dtype are copied here together.

    Args:
        tensors: of one element; a DTensor's sum on this rank counts, where it has another shape.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    scalars = [tensor if tensor.dim() == 0 else tensor.sum() for tensor in map(local_part, tensors)]
    for index, scalar in enumerate(scalars):
        groups.setdefault((scalar.device, scalar.dtype), []).append(index)
    found = [0.0] * len(scalars)
    for indices in groups.values():
        together = torch.stack([scalars[index] for index in indices])
        for index, number in zip(indices, together.tolist()):
            found[index] = float(number)
    return found


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or what this rank has of a DTensor."""
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor if to_local is None else to_local()
    return local
