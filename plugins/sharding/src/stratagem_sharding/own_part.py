"""`OwnPart`: reads the part of a checkpoint that one rank wrote as a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stratagem import CheckpointReader

__all__ = ["OwnPart"]


class OwnPart(CheckpointReader):
    """Reads the tensors of `whole` whose names begin with `prefix`, by their names without it."""

    def __init__(self, whole: CheckpointReader, prefix: str) -> None:
        self._whole, self._prefix = whole, prefix
        self.state, self.world_size = whole.state, whole.world_size
        self.tensors = {
            key.removeprefix(prefix): info for key, info in whole.tensors.items() if key.startswith(prefix)
        }

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return self._whole.rank_state(rank)

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        self._whole.read({f"{self._prefix}{key}": target for key, target in targets.items()})

    def read_all(self) -> dict[str, torch.Tensor]:
        """Return all tensors of this part, on the CPU."""
        found = {name: torch.zeros(info.shape, dtype=info.dtype) for name, info in self.tensors.items()}
        self.read(found)
        return found
