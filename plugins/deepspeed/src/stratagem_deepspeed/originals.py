"""A module's 32-bit values, which an engine in 16 bits rounds before it copies them for its optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem_deepspeed.parameters import Parameters


class Originals:
    """Gives the values of before an engine back to it, and to the module after it.

    Stages 1 and 2 round every parameter of the module in place: make this before, and before the module is moved to
    its device, so that the values stay where they are until `to_engine`. Stage 3 takes parameters as they are.

    Args:
        parameters: of the module, whole; the same on all ranks.
        is_first: whether this is rank 0, whose values count.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], is_first: bool) -> None:
        self._values: list[tuple[nn.Parameter, torch.dtype, torch.Tensor | None]] = [
            (parameter, parameter.dtype, parameter.detach() if is_first else None) for parameter in parameters
        ]
        self._rounded: list[nn.Parameter] = []

    def to_engine(self, access: Parameters) -> None:
        """Write what was rounded into the engine's 32-bit copies; what it doesn't step gets its values back.

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
        """Give the module what the engine has in 32 bits, in the place of what it computed with. Collective."""
        for parameter in self._rounded:
            _set(parameter, access.read(parameter))


def _set(parameter: Any, whole: torch.Tensor) -> None:
    # It couldn't be added to in another dtype.
    parameter.grad = None
    parameter.data = whole
