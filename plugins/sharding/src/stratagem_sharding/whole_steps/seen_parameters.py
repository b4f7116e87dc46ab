"""`SeenParameters`: what an optimizer sees in place of sharded parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class SeenParameters:
    """Whole parameters, which are the same objects in each step, and empty between steps.

    An optimizer that wraps another has states by these objects, and one that calls its closure has them in its
    variables.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[DTensor, nn.Parameter]] = {}
        """By the sharded parameter's id, with that parameter, so that no other one gets its id."""

    def show(self, sharded: DTensor, value: torch.Tensor, grad: torch.Tensor | None) -> nn.Parameter:
        """Return what stands for a sharded parameter, with a value and a gradient that are whole."""
        _, seen = self._seen.setdefault(id(sharded), (sharded, nn.Parameter(value, sharded.requires_grad)))
        seen.data, seen.grad = value, grad
        seen.requires_grad_(sharded.requires_grad)
        return seen

    def empty(self) -> None:
        """Let go of values and gradients."""
        for _, seen in self._seen.values():
            seen.grad, seen.data = None, seen.data.new_empty(0)
