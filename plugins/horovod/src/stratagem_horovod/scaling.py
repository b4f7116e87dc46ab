"""`ScaledLearningRates`: steps with learning rates times the number of workers, which schedulers don't see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer


class ScaledLearningRates:
    """Multiplies learning rates while optimizers step.

    Before and after a step they are as they were given: schedulers, of any kind, work on them and come to the scaled
    rates, and a checkpoint that another number of workers continues with has none of this one's.

    Args:
        optimizers: whose groups may change while they train.
        factor: the number of workers; 1 changes nothing.
    """

    def __init__(self, optimizers: Iterable[Optimizer], factor: int) -> None:
        self._factor = factor
        self._given: dict[int, list[tuple[dict[str, Any], Any]]] = {}
        self._handles: list[Any] = []
        for optimizer in optimizers if factor != 1 else ():
            self._handles += [
                optimizer.register_step_pre_hook(self._scale),
                optimizer.register_step_post_hook(self._restore),
            ]

    def release(self) -> None:
        """Leave the optimizers alone."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _scale(self, optimizer: Optimizer, *_: Any) -> None:
        # After a step that raised, they are still scaled, and what was given is known.
        given = {id(group): lr for group, lr in self._given.pop(id(optimizer), [])}
        now = [
            (group, given.get(id(group), group["lr"])) for group in optimizer.param_groups if "lr" in group
        ]
        self._given[id(optimizer)] = now
        for group, lr in now:
            group["lr"] = lr * self._factor

    def _restore(self, optimizer: Optimizer, *_: Any) -> None:
        for group, lr in self._given.pop(id(optimizer), []):
            group["lr"] = lr
