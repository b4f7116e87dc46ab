"""How kinds of parameters are distinguished."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from stratagem_model_parallel.mesh import TENSOR


def is_split(parameter: torch.Tensor) -> bool:
    """Whether ranks of one copy of the model have been given parts of it, or take part in it."""
    names = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
    return TENSOR in (names or ())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of `tensor`, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
