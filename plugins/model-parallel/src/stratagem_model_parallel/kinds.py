"""Distinguishes split parameters from others."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from stratagem_model_parallel.mesh import TENSOR


def is_split(parameter: torch.Tensor) -> bool:
    """Whether a parameter is a DTensor on a mesh with the dimension "tensor"."""
    names = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
    return TENSOR in (names or ())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's local part of `tensor`, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
