"""`ReferenceLoop`: optimizer steps in plain PyTorch, in one process. Strategies are compared with what it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

Schedule = tuple[Any, str]
"""A scheduler, and "step" or "epoch"."""


def _nothing(index: int) -> None:
    """Do nothing between batches."""


class ReferenceLoop:
    """A training loop in plain PyTorch between batches. The caller iterates over epochs and windows.

    Args:
        optimizers: stepped one after the other.
        schedules: schedulers of the optimizers.
        max_norm: clip each optimizer's gradients by their norm.
        max_value: clip the values of each gradient.
        scaler: scales losses; by default none are scaled.
        closure: whether optimizers evaluate the loss themselves, such as LBFGS.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedules: Sequence[Schedule] = (),
        *,
        max_norm: float | None = None,
        max_value: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        closure: bool = False,
    ) -> None:
        self.optimizers, self.schedules = optimizers, schedules
        self.max_norm, self.max_value, self.closure = max_norm, max_value, closure
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        self.losses: list[float] = []
        """Loss of each micro-batch; 0 if it has none. If an optimizer evaluates it several times, the first value."""
        self.rates: list[list[float]] = []
        """Learning rates of all parameter groups of all optimizers, after each optimizer step."""

    def step(
        self,
        window: Sequence[Any],
        losses_of: Callable[[Any, int], Sequence[Tensor]],
        *,
        shares: int = 1,
        before: Callable[[int], None] = _nothing,
        after: Callable[[int], None] = _nothing,
    ) -> None:
        """Make one optimizer step.

        window: micro-batches of the step.
        losses_of: returns the losses of a micro-batch, given it and its index: one, or one for each share with a
          loss.
        shares: number of losses per micro-batch. Gradients are their mean.
        before: called with the index of each micro-batch, before it is computed for the first time.
        after: called with the index after each micro-batch; for the last one, after the step and the schedulers.
        """
        first = len(self.losses)
        seen: list[float] = []

        def evaluate() -> float:
            is_first = not seen
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            losses = []
            for index, batch in enumerate(window, first):
                if is_first:
                    before(index)
                found = losses_of(batch, index)
                for loss in found:
                    self.scaler.scale(loss / len(window)).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
                losses.append(sum(loss.item() for loss in found) / shares)
                if is_first and index + 1 < first + len(window):
                    after(index)
            self._finish_gradients(shares)
            if is_first:
                seen.extend(losses)
            return sum(losses) / len(losses)

        if self.closure:
            for optimizer in self.optimizers:
                optimizer.step(evaluate)
        else:
            evaluate()
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        self.losses += seen
        self.end_step()
        after(first + len(window) - 1)

    def end_step(self) -> None:
        """Step the schedulers of steps, and record learning rates. `step` calls it; call it after a manual step."""
        for scheduler, interval in self.schedules:
            if interval == "step":
                scheduler.step()
        self.rates.append(rates_of(self.optimizers))

    def end_epoch(self, losses: Sequence[float]) -> None:
        """Step the schedulers of epochs.

        Args:
            losses: losses of the epoch. Their mean is passed to `ReduceLROnPlateau`.
        """
        for scheduler, interval in self.schedules:
            if interval == "epoch":
                is_plateau = isinstance(scheduler, ReduceLROnPlateau)
                scheduler.step(*([sum(losses) / len(losses)] if is_plateau else []))

    def _finish_gradients(self, shares: int) -> None:
        """Average gradients over shares, and unscale and clip them."""
        by_optimizer = [
            [p for group in each.param_groups for p in group["params"]] for each in self.optimizers
        ]
        if shares > 1:
            for parameter in {id(p): p for parameters in by_optimizer for p in parameters}.values():
                if parameter.grad is not None:
                    parameter.grad /= shares
        for optimizer, parameters in zip(self.optimizers, by_optimizer):
            self.scaler.unscale_(optimizer)
            if self.max_value is not None:
                nn.utils.clip_grad_value_(parameters, self.max_value)
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self.max_norm)


def rates_of(optimizers: Sequence[Optimizer]) -> list[float]:
    """Return the learning rate of every parameter group of every optimizer."""
    return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
