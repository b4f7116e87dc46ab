"""Functions of Lightning's utilities that need nothing of a trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stratagem.sdk.tensors import to_device


def grad_norm(
    module: nn.Module, norm_type: float | int | str, group_separator: str = "/"
) -> dict[str, float]:
    """Return the norm of each parameter's gradient by name, and that of all together.

    Keys are "grad_{norm_type}_norm{separator}{name}" and "grad_{norm_type}_norm_total".

    Raises:
        ValueError: `norm_type` isn't above 0.
    """
    order = float(norm_type)
    if order <= 0:
        raise ValueError(f"norm_type is {norm_type}: give a number above 0, or inf")
    norms = {
        f"grad_{norm_type}_norm{group_separator}{name}": parameter.grad.detach().norm(order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{norm_type}_norm_total"] = torch.stack(list(norms.values())).norm(order)
    return {name: float(norm) for name, norm in norms.items()}


def move_data_to_device(batch: Any, device: torch.device | str) -> Any:
    """Return `batch` with its tensors on `device`: lists, tuples, dicts and dataclasses are gone through."""
    return to_device(batch, torch.device(device))
