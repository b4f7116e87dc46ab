"""The local shard of a tensor that a strategy has sharded."""

from __future__ import annotations

import torch


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or any other tensor itself. Shares its memory."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
