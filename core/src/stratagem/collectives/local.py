"""Collectives of a run with a single process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.collectives.arguments import check_reduction, check_source, check_tensor
from stratagem.collectives.base import Collectives, ReduceOp

if TYPE_CHECKING:
    import torch


class LocalCollectives(Collectives):
    """Collectives of a single rank: values stay the same, and get the shapes that other collectives give them."""

    def __init__(self, device: torch.device) -> None:
        self.rank = self.local_rank = self.node_rank = 0
        self.world_size = 1
        self.device = device

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        check_reduction(tensor, op)
        return tensor.detach().clone()

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        check_tensor("all_gather", tensor)
        gathered = tensor.unsqueeze(0).clone()
        return gathered if sync_grads else gathered.detach()

    def broadcast(self, value: Any, src: int = 0) -> Any:
        import torch

        check_source(src, 1)
        return value.detach().clone() if isinstance(value, torch.Tensor) else value

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self, name: str | None = None) -> None:
        return None
