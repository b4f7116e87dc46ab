"""Mixed precision: parameters in 32 bits, forward in 16 bits where that is safe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from stratagem.errors import PrecisionError
from stratagem.precision.base import Precision
from stratagem.precision.optimizer_name import optimizer_name
from stratagem.precision.torch_private import GradientScaler


class MixedPrecision(Precision):
    """ "bf16-mixed": autocast to bfloat16, which has float32's range and needs no loss scaling.

    Args:
        name: "bf16-mixed".
        device: its type is that of the autocast region.
    """

    name = "bf16-mixed"
    compute_dtype: torch.dtype = torch.bfloat16

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device_type = device.type

    def autocast(self) -> AbstractContextManager[Any] | None:
        return torch.autocast(self.device_type, dtype=self.compute_dtype)


class ScaledPrecision(MixedPrecision):
    """ "16-mixed": autocast to float16, with the loss scaled so that small gradients don't vanish.

    A step whose gradients overflowed is skipped and halves the scale; 2,000 good steps double it
    (https://docs.pytorch.org/docs/stable/amp.html). Several optimizers share one scale, which changes
    when the next loss is scaled, that is, after all of them have stepped.

    Args:
        name: "16-mixed".
        device: where losses and gradients are.
    """

    name = "16-mixed"
    compute_dtype: torch.dtype = torch.float16
    scales_loss = True

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name, device)
        self._scaler = GradientScaler(device.type)
        self._unscaled: set[int] = set()
        """Ids of optimizers whose gradients were unscaled since the last update of the scale."""
        self._losses = 0
        """Losses scaled so far."""
        self._losses_at_step: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """Optimizer → how many losses had been scaled when it stepped last."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a scalar loss before backward, after updating the scale from the last steps."""
        self._update()
        self._losses += 1
        scaled = self._scaler.scale(loss)
        assert isinstance(scaled, torch.Tensor)
        return scaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale the gradients of `optimizer`. Further calls in the same step do nothing."""
        if id(optimizer) not in self._unscaled and self._scaler.has_scaled:
            self._scaler.unscale_(optimizer)
            if self._scaler.overflows(optimizer):
                self._unscaled.add(id(optimizer))
            else:
                # It has no gradients now, but may have some before the next update.
                self._scaler.forget(optimizer)

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step `optimizer` unless its gradients overflowed. Waits for the device.

        Returns:
            False when the step was skipped.

        Raises:
            PrecisionError: there is a closure: it would evaluate losses between unscaling and stepping.
        """
        if closure is not None:
            raise PrecisionError(
                f"precision={self.name!r} scales the loss, which doesn't go with an optimizer that"
                f" evaluates the loss several times per step (got {optimizer_name(optimizer)} with a closure);"
                " use precision='bf16-mixed' or '32-true'"
            )
        self._refuse_unscaled(optimizer)
        self.unscale(optimizer)
        # GradScaler.step returns None for a skipped step, as for an applied one without a closure. Some fused
        # optimizers skip within their kernel. So look at the overflows themselves.
        if any(bool(overflow.item()) for overflow in self._scaler.overflows(optimizer)):
            return False
        optimizer.step()
        return True

    def _refuse_unscaled(self, optimizer: Optimizer) -> None:
        """Refuse gradients of a loss that wasn't scaled. Unscaling would make them thousands of times too small."""
        if self._losses_at_step.get(optimizer, 0) == self._losses and any(
            parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]
        ):
            raise PrecisionError(
                f"{optimizer_name(optimizer)} has gradients of a loss that precision={self.name!r} hasn't scaled: "
                "call runtime.backward(loss), or self.manual_backward(loss) in a Module, instead of loss.backward()"
            )
        self._losses_at_step[optimizer] = self._losses

    def state_dict(self) -> dict[str, Any]:
        self._update()
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a scale; an empty state, from a run without scaling, leaves the scale as it is."""
        # Forget earlier gradients: they must not change the loaded scale, and weren't unscaled by it.
        self._unscaled.clear()
        self._scaler.forget_all()
        if state:
            self._scaler.load_state_dict(state)

    def _update(self) -> None:
        if self._unscaled:
            self._scaler.update()
            self._unscaled.clear()
