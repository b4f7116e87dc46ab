"""Optimizers over parameters of several kinds, and what tells the kinds apart."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_fsdp import by_kind
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stratagem_model_parallel.mesh import TENSOR


def is_split(parameter: torch.Tensor) -> bool:
    """Whether ranks of one copy of the model have been given parts of it, or take part in it."""
    names = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
    return TENSOR in (names or ())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of `tensor`, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class SplitGroups:
    """Lets an optimizer step each kind by itself, while everybody else sees its parameter groups as they were.

    Args:
        optimizer: its `step` sees groups of one kind each, with the settings of the group that they are of.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._groups: list[dict[str, Any]] = []
        self._parts: list[list[dict[str, Any]]] = []
        optimizer.register_step_pre_hook(self._divide)
        optimizer.register_step_post_hook(self._unite)

    def _divide(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._groups = optimizer.param_groups
        self._parts = [
            [{**group, "params": kind} for kind in by_kind(group["params"])] or [group]
            for group in self._groups
        ]
        optimizer.param_groups = [part for parts in self._parts for part in parts]

    def _unite(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, parts in zip(self._groups, self._parts):
            # Some optimizers count in their groups: each part has counted from the same number.
            group.update({key: value for key, value in parts[0].items() if key != "params"})
        optimizer.param_groups = self._groups
