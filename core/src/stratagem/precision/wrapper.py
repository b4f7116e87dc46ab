"""`PrecisionWrapper`: the base of what a wrapper of the hook `precision` returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stratagem.precision.base import Precision

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class PrecisionWrapper(Precision):
    """Hands every call on to `inner`; a subclass overrides what it changes.

    Args:
        inner: what the wrapped implementation answered with.
    """

    def __init__(self, inner: Precision) -> None:
        self.inner = inner
        self.name = inner.name
        self.param_dtype, self.compute_dtype = inner.param_dtype, inner.compute_dtype
        self.reduce_dtype = inner.reduce_dtype

    def init_context(self) -> AbstractContextManager[Any]:
        return self.inner.init_context()

    def convert_module(self, module: nn.Module) -> nn.Module:
        return self.inner.convert_module(module)

    def convert_input(self, batch: Any) -> Any:
        return self.inner.convert_input(batch)

    @property
    def converts_input(self) -> bool:
        return self.inner.converts_input

    @property
    def scales_loss(self) -> bool:  # type: ignore[override]
        return self.inner.scales_loss

    @property
    def steps_directly(self) -> bool:  # type: ignore[override]
        return self.inner.steps_directly

    def autocast(self) -> AbstractContextManager[Any] | None:
        return self.inner.autocast()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self.inner.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        self.inner.unscale(optimizer)

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        return self.inner.step(optimizer, closure)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
