"""Optimizers as a module gets them that steps them itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import train
from small import TwoPlayers
from torch.nn import functional as F

import stratagem
from stratagem import PreparedWrapper, hookimpl
from stratagem.errors import ConfigError


class ByHand(TwoPlayers):
    """Runs `act` in its first batch, with both optimizers and gradients of both."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        self.manual_backward(F.mse_loss(self.other(self(batch[0])), batch[1]))
        self.act(first, second)

    def act(self, first: Any, second: Any) -> None:
        raise NotImplementedError

    def val_dataloader(self) -> Any:
        return None


def requires(module: Any) -> list[bool]:
    return [each.requires_grad for each in module.parameters()]


def test_gradients_are_dropped_or_filled_with_zeros(tmp_path: Path) -> None:
    class Drops(ByHand):
        def act(self, first: Any, second: Any) -> None:
            first.zero_grad(set_to_none=False)
            second.zero_grad()
            self.kept = [p.grad is not None for p in self.parameters()]
            self.sums = [float(p.grad.abs().sum()) for p in self.layer.parameters()]

    module = Drops()
    train(module, tmp_path, max_epochs=1, limit_train_batches=1)
    assert (module.kept, module.sums) == ([True, True, False, False], [0.0, 0.0])


@pytest.mark.parametrize("name", ["only_its_gradients", "toggle_model"])
def test_only_the_parameters_of_one_optimizer_require_gradients(name: str, tmp_path: Path) -> None:
    class Toggles(ByHand):
        def act(self, first: Any, second: Any) -> None:
            self.other.bias.requires_grad_(False)
            self.seen = []
            for each in (first, second):
                with getattr(each, name)():
                    self.seen.append(requires(self))
                self.seen.append(requires(self))
            with pytest.raises(ArithmeticError), getattr(second, name)():
                raise ArithmeticError
            self.seen.append(requires(self))

    module = Toggles()
    train(module, tmp_path, max_epochs=1, limit_train_batches=1)
    whole = [True, True, True, False]
    assert module.seen == [[True, True, False, False], whole, [False, False, True, False], whole, whole]


def test_gradients_of_a_toggled_model_are_reduced(tmp_path: Path) -> None:
    class Toggles(ByHand):
        def act(self, first: Any, second: Any) -> None:
            with first.toggle_model(sync_grad=False):
                pass

    with pytest.raises(ConfigError, match=r"toggle_model\(sync_grad=False\) isn't here"):
        train(Toggles(), tmp_path, max_epochs=1)


class Notes:
    """Notes when gradients are completed and averaged, and by what they are clipped."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        prepared, calls = (yield), self.calls

        class Noting(PreparedWrapper):
            def complete_gradients(self, index: int) -> None:
                calls.append(f"complete {index}")
                super().complete_gradients(index)

            def average_gradients(self, index: int) -> None:
                calls.append(f"average {index}")
                super().average_gradients(index)

        return Noting(prepared)


class Hooked(stratagem.Callback):
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.calls.append("hook")

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.calls.append("zero")


def test_hooks_find_complete_gradients_unless_a_closure_makes_them(tmp_path: Path) -> None:
    class Steps(ByHand):
        def act(self, first: Any, second: Any) -> None:
            def closure() -> Any:
                notes.calls.append("closure")
                return F.mse_loss(self.other(self(torch.ones(2, 4))), torch.ones(2, 1))

            notes.calls.clear()
            self.applied = first.step()
            first.zero_grad()
            self.done = list(notes.calls)
            notes.calls.clear()
            second.step(closure)

    notes, module = Notes(), Steps()
    trainer = train(
        module,
        tmp_path,
        max_epochs=1,
        limit_train_batches=1,
        plugins=[notes],
        callbacks=[Hooked(notes.calls)],
    )
    assert module.applied is True
    assert module.done[:2] == ["complete 0", "hook"]
    assert module.done[-1] == "zero"
    assert notes.calls[:2] == ["hook", "closure"]
    assert trainer.global_step == 1


def test_gradients_are_clipped_and_averaged_by_optimizer(tmp_path: Path) -> None:
    class Clips(ByHand):
        def act(self, first: Any, second: Any) -> None:
            notes.calls.clear()
            gradients = [p.grad for p in self.layer.parameters()]
            before = torch.cat([each.flatten() for each in gradients]).norm()
            assert torch.allclose(first.clip(max_norm=0.01), before)
            after = torch.cat([each.flatten() for each in gradients]).norm()
            assert after == pytest.approx(0.01, rel=1e-3)
            assert second.clip(max_value=1e-4) is None
            assert max(float(p.grad.abs().max()) for p in self.other.parameters()) <= 1e-4
            second.average_gradients()
            self.rates = [each.param_groups[0]["lr"] for each in (first, second)]

    notes, module = Notes(), Clips()
    train(module, tmp_path, max_epochs=1, limit_train_batches=1, plugins=[notes])
    assert [each for each in notes.calls if each[-1] == "1" or each == "complete 0"][:3] == [
        "complete 0",
        "complete 1",
        "average 1",
    ]
    assert module.rates == [0.05, 0.05]
