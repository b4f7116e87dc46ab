"""What a rank holds of a tensor that a strategy has sharded."""

from __future__ import annotations

import torch


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; shares its memory."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
