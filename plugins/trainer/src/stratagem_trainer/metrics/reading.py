"""Read numbers from a device, waiting once for several of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the number in each tensor. Tensors of the same device and dtype are copied in one transfer.

    Args:
        tensors: of one element each. Of a larger DTensor, the sum of this rank's shard is returned.
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
    """Return a DTensor's local tensor, or any other tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor if to_local is None else to_local()
    return local
