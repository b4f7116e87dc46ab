"""Stage 0, at which the engine reduces and steps the module's parameters themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stratagem_deepspeed.deepspeed_private import REDUCE_ALL, replace, restore
from stratagem_deepspeed.idle import used_anywhere
from stratagem_deepspeed.masters import Scalars


class WholeGradients:
    """Keeps `grad` None for parameters that have no gradient on any rank. The engine would step them with zeros.

    Args:
        engine: the DeepSpeed engine, at stage 0.
        parameters: those of its optimizer.
        device: of the tensors that collectives send.

    Attributes:
        paused: empty, since each parameter is counted separately.
    """

    def __init__(self, engine: Any, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._engine, self._parameters, self._device = engine, parameters, device
        self.paused: dict[str, Scalars | None] = {}
        self._reduce = replace(engine, REDUCE_ALL, self._reduce_used)

    def remove(self) -> None:
        """Give the engine its own method back."""
        restore(self._engine, REDUCE_ALL)

    def before_step(self) -> None:
        """Do nothing: each parameter is stepped separately."""

    def remove_engine_gradients(self) -> None:
        """Do nothing: no placeholders are used here."""

    def check_assigned(self) -> None:
        """Do nothing: an assigned gradient is stepped, as in plain PyTorch."""

    def _reduce_used(self, *args: Any, **kwargs: Any) -> None:
        used = used_anywhere([p.grad is not None for p in self._parameters], self._device)
        # The engine skips parameters that were frozen after their backward in this step.
        frozen = [p for p, there in zip(self._parameters, used) if there and not p.requires_grad]
        for parameter in frozen:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.requires_grad_(True)
        self._reduce(*args, **kwargs)
        for parameter in frozen:
            parameter.requires_grad_(False)
        for parameter, there in zip(self._parameters, used):
            if not there:
                parameter.grad = None
