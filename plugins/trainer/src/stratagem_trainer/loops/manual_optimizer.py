"""`ManualOptimizer`: the optimizer that a module with manual optimization gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

from stratagem import Clipping
from stratagem.errors import ConfigError
from stratagem.sdk.loops import drop_gradients
from stratagem_trainer.stage.hooks import tell_before_step

if TYPE_CHECKING:
    import torch

    from stratagem import Prepared, Runtime
    from stratagem_trainer.stage.hooks import HookRunner


class ManualOptimizer:
    """Wraps an optimizer, and steps it through the strategy and the precision.

    All other attributes are those of the wrapped optimizer.

    Args:
        runtime: the live runtime.
        prepared: the `Prepared` that has the optimizer.
        hooks: hooks of callbacks and the module.
        index: index of the optimizer.
        on_step: called with the index after a step that was applied.
    """

    def __init__(
        self,
        runtime: Runtime,
        prepared: Prepared,
        hooks: HookRunner,
        index: int,
        on_step: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._prepared, self._session = prepared, runtime.session
        self.index, self._on_step = index, on_step
        self._before_step = hooks.of("on_before_optimizer_step")
        self._before_zero_grad = hooks.of("on_before_zero_grad")
        self.optimizer = prepared.optimizers[index]

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Step the optimizer; return False if the step was skipped. Collective.

        Args:
            closure: evaluates the loss, runs backward and returns the loss. The optimizer gets the loss's mean over
                ranks.
        """
        self._call_before_step(has_gradients=closure is None)
        applied, _ = self._session.step(self._prepared, self.index, closure)
        if applied:
            self._on_step(self.index)
        return applied

    def _call_before_step(self, *, has_gradients: bool) -> None:
        if self._before_step:
            if has_gradients:
                self._prepared.complete_gradients(self.index)
            tell_before_step(self._before_step, self._prepared, self.index, has_gradients=has_gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of the optimizer's parameters to None, or to zero if `set_to_none` is False."""
        for before in self._before_zero_grad:
            before(self.optimizer)
        drop_gradients(self._prepared, self.index, set_to_none)

    def _own(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def clip(self, *, max_norm: float | None = None, max_value: float | None = None) -> torch.Tensor | None:
        """Clip the optimizer's gradients; with `max_norm`, return their norm before clipping. Collective."""
        self._prepared.complete_gradients(self.index)
        return self._prepared.clip(self.index, Clipping(max_norm, max_value))

    def average_gradients(self) -> None:
        """Average the gradients over ranks, before a step with gradients that the module assigned. Collective."""
        self._prepared.average_gradients(self.index)

    @contextmanager
    def only_its_gradients(self) -> Iterator[None]:
        """Let only this optimizer's parameters require gradients. A context manager."""
        own = {id(parameter) for parameter in self._own()}
        others = [
            p for p in self._prepared.original_module.parameters() if p.requires_grad and id(p) not in own
        ]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """As `only_its_gradients`.

        Raises:
            ConfigError: gradients aren't to be reduced.
        """
        if not sync_grad:
            raise ConfigError("toggle_model(sync_grad=False) isn't here: each backward reduces its gradients")
        with self.only_its_gradients():
            yield

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)
