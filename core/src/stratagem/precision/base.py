"""`Precision`: dtypes, autocast and loss scaling; the result of the `precision` hook."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from stratagem.precision.skippable import is_skippable, skippable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Precision:
    """Full precision in the module's own dtype. The base of all other precisions.

    Every method is called on each rank; none is collective.

    Attributes:
        name: such as "bf16-mixed".
        param_dtype: dtype of parameters and of floating-point inputs; None keeps their own.
        compute_dtype: dtype of autocast regions; None without autocast.
        reduce_dtype: dtype in which gradients are reduced; None keeps their own.
    """

    name: str = "32-true"
    param_dtype: torch.dtype | None = None
    compute_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    scales_loss: bool = False
    """Whether `scale` changes losses, so that `step` skips a step in which a gradient overflows."""

    def for_device(self, device: torch.device) -> Precision:
        """Return this precision for a process's device. A precision that was chosen by name is made for it already.

        Raises:
            stratagem.errors.PrecisionError: the device can't compute in it.
        """
        return self

    def convert_layers(self, module: nn.Module) -> Callable[[], None]:
        """Change in place how layers of the user's module compute. Return a function that undoes it.

        Called before the strategy's `setup`, with parameters that may be on "meta". Modules and parameters stay the
        same objects, with the same names. The undo is called when the run has released the module.

        Raises:
            stratagem.errors.PrecisionError: the module has no layer for it.
        """
        return _nothing

    def init_context(self) -> AbstractContextManager[Any]:
        """Return a context for the construction of a module. It sets the default dtype if that isn't float32."""
        return nullcontext()

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Convert floating-point parameters and buffers in place to `param_dtype`; returns `module`."""
        if self.param_dtype is None:
            return module
        from stratagem.precision.convert import convert_module

        return convert_module(module, self.param_dtype)

    @skippable
    def convert_input(self, batch: Any) -> Any:
        """Return `batch` with floating-point tensors in `param_dtype`; other values as they are."""
        if self.param_dtype is None:
            return batch
        from stratagem.precision.convert import convert_tensors

        return convert_tensors(batch, self.param_dtype)

    @property
    def converts_input(self) -> bool:
        """Whether the loop must call `convert_input`. True in a subclass that overrides it."""
        return self.param_dtype is not None or not is_skippable(self.convert_input)

    def autocast(self) -> AbstractContextManager[Any] | None:
        """Return a new context for one forward and its loss; None if there is nothing to enter."""
        return None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a scalar loss before backward."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the loss scale, once per step, before clipping."""

    @property
    def steps_directly(self) -> bool:
        """Whether a loop may call an optimizer's own `step` instead; False where a subclass overrides `step`."""
        return is_skippable(self.step)

    @skippable
    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step `optimizer`; False when the step was skipped because gradients overflowed."""
        if closure is None:
            optimizer.step()
        else:
            optimizer.step(closure)
        return True

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state, such as the loss scale."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


def _nothing() -> None:
    """Undo nothing."""
