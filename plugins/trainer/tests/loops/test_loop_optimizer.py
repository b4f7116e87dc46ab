"""An optimizer that the loop steps, as the hooks of a module get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import train
from small import Closure, Line
from torch.nn import functional as F

import stratagem
from stratagem import LossSum, PreparedWrapper, hookimpl
from stratagem.errors import ConfigError, GradientError


class Plain(Line):
    """Nothing to validate on."""

    def val_dataloader(self) -> Any:
        return None


class PlainClosure(Closure):
    def val_dataloader(self) -> Any:
        return None


def test_gradients_are_dropped_or_filled_with_zeros(tmp_path: Path) -> None:
    seen = []

    class Drops(Plain):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            for how in ({"set_to_none": False}, {}):
                optimizer.zero_grad(**how)
                gradient = self.layer.weight.grad
                seen.append(None if gradient is None else float(gradient.abs().sum()))

    train(Drops(), tmp_path, max_steps=1)
    assert seen == [0.0, None]


def test_a_closure_around_the_loops_own_is_called(tmp_path: Path) -> None:
    losses: dict[str, list[Any]] = {"around": [], "directly": [], "without": []}

    class Steps(PlainClosure):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.how = how

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            def around() -> Any:
                loss = optimizer_closure()
                losses[self.how].append(float(loss))
                return loss

            optimizer.step(*{"around": [around], "directly": [optimizer_closure], "without": []}[self.how])

    modules = {how: Steps(how) for how in losses}
    for module in modules.values():
        train(module, tmp_path, max_epochs=1, limit_train_batches=2)
    assert len(losses["around"]) > 2
    for how in ("directly", "without"):
        assert torch.equal(modules[how].layer.weight, modules["around"].layer.weight)


def test_a_closure_is_called_once_where_gradients_are_there(tmp_path: Path) -> None:
    class Twice(Plain):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            self.first = optimizer_closure()
            optimizer_closure()

    module = Twice()
    with pytest.raises(
        ConfigError, match="called its closure twice for Adam, whose gradients are there already"
    ):
        train(module, tmp_path)
    assert module.first.requires_grad is False


def test_the_closure_of_a_step_without_a_loss_returns_none(tmp_path: Path) -> None:
    returned = []

    class Skips(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss if batch_idx else None

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            returned.append(optimizer_closure())

    train(Skips(), tmp_path, max_epochs=1, limit_train_batches=2)
    assert returned[0] is None
    assert isinstance(returned[1], torch.Tensor)


class Completes:
    """Notes when gradients are completed."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        prepared, seen = (yield), self.seen

        class Noting(PreparedWrapper):
            def complete_gradients(self, index: int) -> None:
                seen.append("complete")
                super().complete_gradients(index)

        return Noting(prepared)


class Asked(stratagem.Callback):
    """Notes whether gradients are there before each step."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.seen.append(module.layer.weight.grad is not None)


@pytest.mark.parametrize(("kind", "expected"), [(Plain, ["complete", True]), (PlainClosure, [False])])
def test_the_hook_before_a_step_comes_once_and_before_gradients_of_a_closure(
    kind: type[Line], expected: list[Any], tmp_path: Path
) -> None:
    seen: list[Any] = []
    train(kind(), tmp_path, max_steps=1, plugins=[Completes(seen)], callbacks=[Asked(seen)])
    assert seen[:2] == expected
    assert seen.count(True) + seen.count(False) == 1


def test_a_step_that_is_made_twice_counts_once(tmp_path: Path) -> None:
    class Twice(Plain):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            for _ in range(batch_idx % 3):
                optimizer.step()

    assert train(Twice(), tmp_path, max_epochs=1, limit_train_batches=6).global_step == 4


class WeightedLine(Plain):
    """Its loss is a sum, with the number of samples as its weight."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return LossSum(F.mse_loss(self(x), y, reduction="sum"), float(len(x)))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_step_ends_the_window_of_weights(tmp_path: Path) -> None:
    """Gradients that a hook keeps are divided already: no weighted loss can be added to them."""

    class Keeps(WeightedLine):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            pass

    with pytest.raises(GradientError, match="there are gradients of another step"):
        train(Keeps(), tmp_path, max_epochs=1)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_closure_returns_the_mean_by_weights(accumulate: int, tmp_path: Path) -> None:
    losses = []

    class Asks(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any) -> None:  # type: ignore[override]  # needs a closure
            losses.extend([float(closure()), float(closure())])

    class Weighted(WeightedLine):
        def configure_optimizers(self) -> Any:
            return Asks(self.parameters())

    class Mean(Weighted):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return F.mse_loss(self(batch[0]), batch[1])

    for kind in (Weighted, Mean):
        train(kind(), tmp_path, max_epochs=1, limit_train_batches=4, accumulate_grad_batches=accumulate)
    count = len(losses) // 2
    assert count == 2 * 4 // accumulate
    # All batches have as many samples, so that both means are the same.
    assert losses[:count] == pytest.approx(losses[count:], rel=1e-6)
