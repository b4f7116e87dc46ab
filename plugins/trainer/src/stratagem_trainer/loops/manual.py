"""Optimizers in the hands of a module that optimizes manually."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

from stratagem import Clipping
from stratagem.sdk.collectives import mean_closure
from stratagem_trainer.hooks import tell_before_step

if TYPE_CHECKING:
    import torch

    from stratagem import Collectives, Prepared
    from stratagem_trainer.hooks import HookRunner


class ManualOptimizer:
    """One optimizer, stepped through the strategy and the precision.

    Attributes other than its own are the wrapped optimizer's.

    Args:
        prepared: has the optimizer.
        index: of the optimizer.
        on_step: called with the index after a step that was applied.
        data_ranks: those that read different batches.
        hooks: of callbacks and the module.
    """

    def __init__(
        self,
        prepared: Prepared,
        index: int,
        on_step: Callable[[int], None],
        data_ranks: Collectives,
        hooks: HookRunner,
    ) -> None:
        self._prepared, self._index, self._on_step = prepared, index, on_step
        self._data_ranks = data_ranks
        self._before_step = hooks.of("on_before_optimizer_step")
        self._before_zero_grad = hooks.of("on_before_zero_grad")
        self.optimizer = prepared.optimizers[index]

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Step; False when it was skipped. Collective.

        Args:
            closure: evaluates the loss and runs backward; the optimizer gets the mean over ranks of what it returns.
        """
        if self._before_step:
            tell_before_step(self._before_step, self._prepared, self._index, has_gradients=closure is None)
        applied = self._prepared.step(self._index, mean_closure(closure, self._data_ranks))
        if applied:
            self._on_step(self._index)
        return applied

    def zero_grad(self) -> None:
        """Drop the gradients of its parameters."""
        for before in self._before_zero_grad:
            before(self.optimizer)
        self._prepared.zero_grad(self._index)

    def clip(self, *, max_norm: float | None = None, max_value: float | None = None) -> torch.Tensor | None:
        """Limit its gradients; returns the norm before, when `max_norm` is given. Collective."""
        return self._prepared.clip(self._index, Clipping(max_norm, max_value))

    @contextmanager
    def only_its_gradients(self) -> Iterator[None]:
        """A context in which only its parameters require gradients."""
        own = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)
