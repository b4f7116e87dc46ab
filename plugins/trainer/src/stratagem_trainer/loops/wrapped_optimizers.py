"""Optimizers as a module gets them, for manual optimization or `optimizer_step`."""

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

    from stratagem import Prepared
    from stratagem_trainer.stage.hooks import HookRunner


class ManualOptimizer:
    """One optimizer, stepped through the strategy and the precision.

    Attributes other than its own are the wrapped optimizer's.

    Args:
        prepared: has the optimizer.
        index: of the optimizer.
        on_step: called with the index after a step that was applied.
        step_completed: `Session.step` of `prepared`.
        hooks: of callbacks and the module.
    """

    def __init__(
        self,
        prepared: Prepared,
        index: int,
        on_step: Callable[[int], None],
        step_completed: Callable[[int, Callable[[], Any] | None], tuple[bool, Any]],
        hooks: HookRunner,
    ) -> None:
        self._prepared, self._index, self._on_step = prepared, index, on_step
        self._step_completed = step_completed
        self._before_step = hooks.of("on_before_optimizer_step")
        self._before_zero_grad = hooks.of("on_before_zero_grad")
        self.optimizer = prepared.optimizers[index]

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Step; False when it was skipped. Collective.

        Args:
            closure: evaluates the loss and runs backward; the optimizer gets the mean over ranks of what it returns.
        """
        if self._before_step:
            if closure is None:
                self._prepared.complete_gradients(self._index)
            tell_before_step(self._before_step, self._prepared, self._index, has_gradients=closure is None)
        applied, _ = self._step_completed(self._index, closure)
        if applied:
            self._on_step(self._index)
        return applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of its parameters, or fill them with zeros where `set_to_none` is False."""
        for before in self._before_zero_grad:
            before(self.optimizer)
        drop_gradients(self._prepared, self._index, set_to_none)

    def _own(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def clip(self, *, max_norm: float | None = None, max_value: float | None = None) -> torch.Tensor | None:
        """Limit its gradients; returns the norm before, when `max_norm` is given. Collective."""
        self._prepared.complete_gradients(self._index)
        return self._prepared.clip(self._index, Clipping(max_norm, max_value))

    def average_gradients(self) -> None:
        """Average its gradients over ranks, before a step with those that the module assigned. Collective."""
        self._prepared.average_gradients(self._index)

    @contextmanager
    def only_its_gradients(self) -> Iterator[None]:
        """A context in which only its parameters require gradients."""
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


class LoopOptimizer(ManualOptimizer):
    """One optimizer that the loop steps, as `Module.optimizer_step` and `optimizer_zero_grad` get it.

    Args:
        prepared: has the optimizer.
        index: of the optimizer.
        step: what the loop does where the module says nothing: hooks, clipping and the step.
        step_completed: as for `ManualOptimizer`.
        hooks: of callbacks and the module.
    """

    def __init__(
        self,
        prepared: Prepared,
        index: int,
        step: Callable[[int, Callable[[], Any] | None], bool],
        step_completed: Callable[[int, Callable[[], Any] | None], tuple[bool, Any]],
        hooks: HookRunner,
    ) -> None:
        super().__init__(prepared, index, lambda _: None, step_completed, hooks)
        self._loop_step = step
        self._evaluate: Callable[[], Any] | None = None
        self._loss: Any = None
        self._is_evaluated = True
        self.was_applied = False
        """Whether it was stepped since `begin`."""

    def begin(self, evaluate: Callable[[], Any] | None, loss: Any) -> None:
        """Begin a step.

        Args:
            evaluate: evaluates the loss, where the optimizer does so itself.
            loss: the one whose gradients are there, where it doesn't.
        """
        self._evaluate, self._loss = evaluate, loss
        self._is_evaluated = self.was_applied = False

    def closure(self) -> Any:
        """What `optimizer_step` gets as its closure: returns the loss, whose gradients are there afterwards.

        Raises:
            ConfigError: it is called twice for an optimizer that doesn't evaluate the loss itself.
        """
        if self._evaluate is not None:
            return self._evaluate()
        if self._is_evaluated:
            raise ConfigError(
                f"optimizer_step called its closure twice for {type(self.optimizer).__name__}, whose gradients are "
                "there already: only an optimizer whose step() can't do without a closure evaluates the loss again; "
                "optimize manually"
            )
        self._is_evaluated = True
        return self._loss

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Step as the loop does; False when it was skipped. Collective.

        Args:
            closure: the one that `optimizer_step` got, or one around it.
        """
        evaluate = self._evaluate
        if closure is not None and evaluate is None:
            closure()
        applied = self._loop_step(self._index, evaluate and (closure or evaluate))
        self.was_applied = self.was_applied or applied
        return applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of its parameters, or fill them with zeros where `set_to_none` is False."""
        drop_gradients(self._prepared, self._index, set_to_none)
