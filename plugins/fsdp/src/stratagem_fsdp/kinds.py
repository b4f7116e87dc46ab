"""Parameters by kind: torch's optimizers and norms take several at a time only where all lie on one mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


def by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return parameters in groups: plain ones, and DTensors by their mesh; in the order of the first of each."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kinds.setdefault(kind, []).append(parameter)
    return list(kinds.values())
