"""Which loss an optimizer with a closure gets, and of which step a loss that isn't finite is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import batches, train
from small import Closure, Line, TwoPlayers
from torch.nn import functional as F

from stratagem.errors import NonFiniteError


class Asks(torch.optim.Optimizer):
    """Evaluates twice per step, and keeps what it was given."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.losses: list[float] = []

    def step(self, closure: Any) -> None:  # type: ignore[override]  # needs a closure, as L-BFGS
        self.losses += [float(closure()), float(closure())]


def test_a_closure_returns_the_mean_of_its_window(tmp_path: Path) -> None:
    class Asked(Line):
        def configure_optimizers(self) -> Any:
            self.optimizer = Asks(self.parameters())
            return self.optimizer

        def val_dataloader(self) -> Any:
            return None

    module, plain = Asked(), Line()
    train(module, tmp_path, max_epochs=1, limit_train_batches=5, accumulate_grad_batches=3)
    losses = [F.mse_loss(plain(x), y).item() for x, y in batches()][:5]
    expected = [sum(losses[:3]) / 3] * 2 + [sum(losses[3:]) / 2] * 2
    assert module.optimizer.losses == pytest.approx(expected, rel=1e-6)


class Breaks:
    """Its loss is NaN in the sixth batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)  # type: ignore[misc]  # a mixin
        return self(batch[0]).mean() * (math.nan if batch_idx == 5 else 1.0)  # type: ignore[operator]  # a module


class BreaksLine(Breaks, Line):
    pass


class BreaksClosure(Breaks, Closure):
    pass


class BreaksByHand(Breaks, TwoPlayers):
    pass


@pytest.mark.parametrize("make", [BreaksLine, BreaksClosure, BreaksByHand])
def test_a_loss_that_is_not_finite_is_of_the_step_that_comes(make: Any, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="the loss is nan at step 6, which isn't finite"):
        train(make(), tmp_path, terminate_on_nan=True, max_epochs=1)


class FarByHand(TwoPlayers):
    """Its losses are finite, and its first step leads to parameters that aren't."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=math.inf) for each in (self.layer, self.other)]


def test_parameters_that_are_not_finite_after_a_manual_step(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"the parameter layer\.weight isn't finite after step 1"):
        train(FarByHand(), tmp_path, terminate_on_nan=True, max_steps=1)
    assert train(FarByHand(), tmp_path / "unwatched", max_steps=1).global_step == 1


def test_each_backward_of_a_closure_is_reported(tmp_path: Path) -> None:
    class GetsTheLoss(Closure):
        losses = backwards = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.losses += 1
            return super().training_step(batch, batch_idx)

        def on_after_backward(self) -> None:
            self.backwards += 1

    module = GetsTheLoss()
    train(module, tmp_path, max_epochs=1, limit_train_batches=4, accumulate_grad_batches=2)
    assert module.backwards == module.losses > 4
