"""A rank's shard of an unsharded tensor: flat shards for strategies, rows for checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["padded_flat_shard", "row_shard"]


def row_shard(whole: torch.Tensor, mesh: DeviceMesh | None) -> torch.Tensor:
    """Return the rows of `whole` that this rank writes into a checkpoint, as a DTensor.

    Args:
        whole: the same on all ranks; the result doesn't share its memory.
        mesh: a mesh of all ranks; None for one process, for which the result is a copy of `whole`.
    """
    if mesh is None or whole.dim() == 0:
        return whole.detach().clone()
    rows = torch.chunk(whole.detach(), mesh.size(), 0)
    rank = mesh.get_local_rank()
    own = rows[rank].clone() if rank < len(rows) else whole.new_empty((0, *whole.shape[1:]))
    stride = torch.empty(whole.shape, device="meta").stride()
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=stride)


def padded_flat_shard(whole: torch.Tensor, count: int, rank: int) -> torch.Tensor:
    """Return rank `rank`'s shard of `count` elements of the flattened `whole`, padded with zeros."""
    flat = whole.detach().reshape(-1)
    begin = min(rank * count, flat.numel())
    own = flat[begin : begin + count]
    return torch.nn.functional.pad(own, (0, count - own.numel()))
