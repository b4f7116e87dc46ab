"""`LossWatch`: notices a loss that isn't finite, without synchronising with the device at each step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import nn

from stratagem.errors import NonFiniteError
from stratagem_trainer.metrics.reading import local_part, numbers

_LOSS = "the loss"
_CHECK_EVERY = 64
_CHECK_SECONDS = 1.0
_MOST_KEPT = 1024


class BadValue(NamedTuple):
    """A value that isn't finite."""

    step: int
    """Number of the optimizer step, from 1."""
    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} is {self.value} at step {self.step}"


class LossWatch:
    """Keeps the losses since the last check, and checks all of them at once.

    Args:
        logged: returns the values that the current training step has logged. They are checked for NaN if the step
            returns no loss, as with manual optimization.
    """

    def __init__(self, logged: Callable[[], Mapping[str, Any]]) -> None:
        self._logged = logged
        self._kept: list[tuple[int, str, torch.Tensor]] = []
        self._looked_at = time.perf_counter()
        self.found: BadValue | None = None
        """The first checked value that wasn't finite; None so far."""
        self.is_reported = False
        """Whether the user was warned."""
        self.without_loss = 0
        """How many steps returned no loss."""

    def add(self, step: int, output: Any) -> None:
        """Add a training step's result, before optimizer step `step`."""
        loss = output if isinstance(output, torch.Tensor) else _loss_in(output)
        # A finite loss on the CPU is checked at once, without waiting for a device; it needn't be kept.
        if loss is not None and loss.is_cpu and loss.numel() == 1 and isfinite(loss.item()):
            return
        if self.found is not None:
            return
        if loss is not None:
            self._kept.append((step, _LOSS, loss.detach()))
        else:
            self.without_loss += 1
            self._kept += [
                (step, name, torch.as_tensor(value))
                for name, value in self._logged().items()
                if isinstance(value, torch.Tensor) or not isfinite(value)
            ]
        if len(self._kept) >= _MOST_KEPT:
            self.look()

    @property
    def is_due(self) -> bool:
        """Whether enough losses were kept, or enough time has passed, for a check with its synchronisation."""
        if not self._kept:
            return False
        return len(self._kept) >= _CHECK_EVERY or time.perf_counter() - self._looked_at > _CHECK_SECONDS

    def look(self) -> BadValue | None:
        """Return the first value that wasn't finite, or None. Waits for the device."""
        kept, self._kept = self._kept, []
        self._looked_at = time.perf_counter()
        if kept:
            values = numbers([tensor for _, _, tensor in kept])
            if isfinite(sum(values)):
                return None
            for (step, name, _), value in zip(kept, values):
                # Logged values other than the loss may be infinite.
                if math.isnan(value) or (math.isinf(value) and name == _LOSS):
                    self.found = BadValue(step, name, value)
                    break
        return self.found


class FiniteCheck:
    """Warns of a loss that isn't finite, or ends the run.

    Args:
        losses: keeps the losses until they are checked.
        module: the user's module.
        ends_run: `terminate_on_nan`: check each loss at once, and the parameters after each step.
    """

    def __init__(self, losses: LossWatch, module: nn.Module, *, ends_run: bool) -> None:
        self._losses, self._module, self.ends_run = losses, module, ends_run
        self.check_loss: Callable[[int, Any], None] = self._look_at_loss if ends_run else losses.add
        """Check what a training step returned, before the parameters are stepped along it."""

    def _look_at_loss(self, step: int, output: Any) -> None:
        """Add a training step's result and check it at once.

        Raises:
            NonFiniteError: the loss isn't finite. The message names the value, the step and the first parameter that
                isn't finite.
        """
        self._losses.add(step, output)
        bad = self._losses.look()
        if bad is not None:
            self._losses.is_reported = True
            parameter = first_non_finite(self._module.named_parameters())
            also = f"the parameter {parameter} isn't either" if parameter else "all parameters still are"
            raise NonFiniteError(f"terminate_on_nan ends the run: {bad}, which isn't finite; {also}")

    def check_parameters(self, step: int) -> None:
        """Check the parameters after a step.

        Raises:
            NonFiniteError: a parameter isn't finite. The message names the first one and the step.
        """
        if not all_finite(self._module.parameters()):
            parameter, self._losses.is_reported = first_non_finite(self._module.named_parameters()), True
            raise NonFiniteError(
                f"terminate_on_nan ends the run: the parameter {parameter} isn't finite after step {step}"
            )


def first_non_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the name of the first tensor with a non-finite element on this rank, or "". Waits for the device."""
    for name, tensor in tensors:
        local = local_part(tensor.detach())
        if not bool(torch.isfinite(local).all()):
            return name
    return ""


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements on this rank are finite. Waits for the device once."""
    local = [part for part in (local_part(tensor.detach()) for tensor in tensors) if part.numel()]
    if not local:
        return True
    # Use the maximum norm: a sum of finite values may overflow.
    return isfinite(float(nn.utils.get_total_norm(local, float("inf"))))


def _loss_in(output: Any) -> torch.Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else None
