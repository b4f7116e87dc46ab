"""`SeenParameters`: the whole parameters that an optimizer sees instead of sharded ones."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class SeenParameters:
    """Whole parameters, which are the same objects in every step, and empty between steps.

    They must be the same objects: an optimizer that wraps another keys its states by them, and an optimizer that
    calls its closure keeps them in variables.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[DTensor, nn.Parameter]] = {}
        """By the sharded parameter's id; the value keeps that parameter alive, so that its id isn't reused."""

    def show(self, sharded: DTensor, value: torch.Tensor, grad: torch.Tensor | None) -> nn.Parameter:
        """Return the whole parameter that replaces a sharded one, with a whole value and gradient."""
        _, seen = self._seen.setdefault(id(sharded), (sharded, nn.Parameter(value, sharded.requires_grad)))
        seen.data, seen.grad = value, grad
        seen.requires_grad_(sharded.requires_grad)
        return seen

    def empty(self) -> None:
        """Free values and gradients."""
        for _, seen in self._seen.values():
            seen.grad, seen.data = None, seen.data.new_empty(0)
