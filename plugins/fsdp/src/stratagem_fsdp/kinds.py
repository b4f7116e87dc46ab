"""Groups parameters by mesh: torch's optimizers and norms need all tensors of a call on one mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


def by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters: ordinary ones, and DTensors by mesh, in the order of each group's first parameter."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kinds.setdefault(kind, []).append(parameter)
    return list(kinds.values())
