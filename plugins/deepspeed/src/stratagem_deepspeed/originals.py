"""Keeps a module's 32-bit values: a 16-bit engine rounds them before it copies them for its optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem_deepspeed.parameters import Parameters


class Originals:
    """Keeps 32-bit values from before an engine starts; writes them to the engine, and later back to the module.

    Stages 1 and 2 round every parameter of the module in place. Create this object before that, and before the
    module moves to its device, so that the values use no device memory. Stage 3 doesn't round parameters.

    Args:
        parameters: the module's full parameters; the same on all ranks.
        is_first: whether this is rank 0, whose values are used.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], is_first: bool) -> None:
        self._values: list[tuple[nn.Parameter, torch.dtype, torch.Tensor | None]] = [
            (parameter, parameter.dtype, parameter.detach() if is_first else None) for parameter in parameters
        ]
        self._rounded: list[nn.Parameter] = []

    def to_engine(self, access: Parameters) -> None:
        """Write unrounded values into the engine's 32-bit copies, or into parameters that it doesn't step.

        Collective.

        Args:
            access: to the engine's parameters.
        """
        values, self._values = self._values, []
        for parameter, dtype, value in values:
            if parameter.dtype == dtype:
                continue
            whole = torch.empty(parameter.shape, dtype=dtype, device=parameter.device)
            if value is not None:
                whole.copy_(value)
            dist.broadcast(whole, 0)
            if access.is_trained(parameter):
                access.write(parameter, whole)
                self._rounded.append(parameter)
            else:
                _set(parameter, whole)

    def to_module(self, access: Parameters) -> None:
        """Replace the module's rounded parameters by the engine's 32-bit copies. Collective."""
        for parameter in self._rounded:
            _set(parameter, access.read(parameter))


def _set(parameter: Any, whole: torch.Tensor) -> None:
    # Backward can't accumulate into a gradient of another dtype.
    parameter.grad = None
    parameter.data = whole
