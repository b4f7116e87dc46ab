"""What the recorder uses of torch that torch keeps private, with the reasons.

plugins/diff/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from stratagem_diff.values import Shard


def in_backward() -> bool:
    """Whether autograd runs: a forward within it is activation checkpointing's, which computes again."""
    return bool(torch._C._current_graph_task_id() != -1)


def version(tensor: Tensor) -> int:
    """Return the number of writes to a tensor so far, its views' included: nothing public counts them."""
    return int(tensor._version)


def local_shard(tensor: DTensor) -> tuple[Tensor, Shard]:
    """Return this rank's shard of a DTensor, and where it lies in the whole one. Not collective.

    The public `to_local` of a subclass may gather, and nothing public says where an uneven shard begins.
    """
    with torch._C.DisableTorchFunctionSubclass():
        local: Tensor = tensor.detach()._local_tensor  # type: ignore[attr-defined]  # a DTensor stays one
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if tuple(shape) != tuple(local.shape):  # as where a placement is strided: the whole isn't known
        offsets = tuple(0 for _ in local.shape)
        return local, Shard(tuple(local.shape), offsets)
    partial = any(placement.is_partial() for placement in tensor.placements)
    return local, Shard(tuple(tensor.shape), tuple(offsets), partial)
