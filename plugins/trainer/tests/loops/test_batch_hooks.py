"""Hooks around training batches: what they get, and how one ends an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import batches, train
from small import Line
from stratagem_trainer.loops.outputs import seen_by_hooks

import stratagem
from stratagem import LossSum
from stratagem.errors import ConfigError


class Plain(Line):
    """Nothing to validate on."""

    def val_dataloader(self) -> Any:
        return None


class Ended(stratagem.Callback):
    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs)


def test_a_hook_gets_a_dict_of_what_the_step_returned(tmp_path: Path) -> None:
    class Returns(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return [loss, {"loss": loss, "rows": len(batch[0])}, None][batch_idx % 3]

    ended = Ended()
    train(Returns(), tmp_path, max_epochs=1, limit_train_batches=3, callbacks=[ended])
    loss, more, nothing = ended.outputs
    assert sorted(loss) == ["loss"]
    assert not loss["loss"].requires_grad
    assert (sorted(more), more["rows"], more["loss"].requires_grad) == (["loss", "rows"], 4, False)
    assert nothing is None


def test_outputs_without_their_graph() -> None:
    loss = torch.ones((), requires_grad=True) * 2
    seen = seen_by_hooks(LossSum(loss, torch.tensor(3.0)))
    assert (list(seen), seen["loss"].requires_grad, float(seen["weight"])) == (["loss", "weight"], False, 3.0)
    assert seen_by_hooks("other") == "other"


class EndsEpoch(Plain):
    """Ends each epoch before batch `at`, and then none."""

    def __init__(self, at: int, epochs: int = 9) -> None:
        super().__init__()
        self.at, self.epochs, self.trained = at, epochs, []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == self.at and self.trainer.current_epoch < self.epochs else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append((self.trainer.current_epoch, batch_idx))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_hook_ends_the_epoch_before_a_batch(accumulate: int, tmp_path: Path) -> None:
    module = EndsEpoch(at=2, epochs=1)
    train(module, tmp_path, limit_train_batches=4, accumulate_grad_batches=accumulate)
    assert module.trained == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("at", [1, 3])
def test_a_hook_may_not_end_it_within_a_step(at: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"returned -1 for batch {at}, .* those of batch {at - 1}"):
        train(EndsEpoch(at), tmp_path, accumulate_grad_batches=2)


def test_an_epoch_without_batches_is_no_skipped_one(tmp_path: Path) -> None:
    """A module without hooks of batches, whose epochs end as whole ones."""
    trainer = train(Plain(), tmp_path, limit_train_batches=3)
    assert (trainer.current_epoch, trainer.global_step, len(batches())) == (2, 6, 8)
