"""Optimizers that the loop steps, with and without the module's hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import train
from small import Descent, Line, samples
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem
from stratagem import Callback, Logger, PreparedWrapper, hookimpl
from stratagem.errors import NonFiniteError


class Logs(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("seen", float(batch_idx), on_epoch=True)
        return None if batch_idx == 1 else loss


class Skips(Logs):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == 5 else None


class Rows(Logger):
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, rows: Any) -> None:
        self.rows += [(row.step, row.epoch, dict(row.values)) for row in rows]


class Notes(Callback):
    """Every call around a batch, and what the run knows of itself then."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _note(self, name: str, trainer: Any) -> None:
        self.calls.append((name, trainer.batch_idx, trainer.global_step))

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._note("start", trainer)

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self._note("after backward", trainer)

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._note("before zero_grad", trainer)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._note(f"end {batch_idx} {outputs is None}", trainer)


class Steps:
    """Each call of the strategy's `step` and `zero_grad`."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        prepared, calls = (yield), self.calls

        class Noting(PreparedWrapper):
            def step(self, index: int, closure: Any = None) -> bool:
                calls.append(f"step {index}")
                # As after an overflow.
                return super().step(index, closure) and len(calls) != 5

            def zero_grad(self, index: int) -> None:
                calls.append(f"zero {index}")
                super().zero_grad(index)

        return Noting(prepared)


def outcome(module: Line, folder: Path, **how: Any) -> list[Any]:
    notes, steps, rows = Notes(), Steps(), Rows()
    callbacks = how.pop("callbacks", [notes])
    plugins = [steps] if how.pop("steps", False) else []
    how = {"max_epochs": 2, "log_every_n_steps": 2, "logger": rows, **how}
    trainer = train(module, folder, callbacks=callbacks, plugins=plugins, **how)
    weights = [parameter.tolist() for parameter in module.parameters()]
    return [notes.calls, steps.calls, trainer.global_step, trainer.current_epoch, rows.rows, weights]


@pytest.mark.parametrize("kind", [Logs, Skips])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"callbacks": []},
        {"callbacks": [], "steps": True},
        {"gradient_clip_val": 0.1},
        {"max_steps": 5},
        {"val_check_interval": 3},
        {"max_time": {"hours": 1}},
    ],
    ids=str,
)
def test_a_module_that_steps_by_its_own_hook_gets_the_same(
    kind: Any, how: dict[str, Any], tmp_path: Path
) -> None:
    class OwnStep(kind):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
            optimizer.step(closure=closure)

    (tmp_path / "loop").mkdir()
    (tmp_path / "module").mkdir()
    by_loop = outcome(kind(), tmp_path / "loop", **how)
    assert by_loop == outcome(OwnStep(), tmp_path / "module", **how)
    assert by_loop[2] > 1


def test_a_loss_that_is_not_finite_ends_it_before_the_step(tmp_path: Path) -> None:
    class Bad(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 2 else 1.0)

    module = Bad()
    with pytest.raises(NonFiniteError, match="step 3"):
        train(module, tmp_path, max_epochs=1, terminate_on_nan=True)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_a_windows_loss_that_is_not_finite_is_of_the_step_that_it_was_for(tmp_path: Path) -> None:
    class Bad(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 4 else 1.0)

    with pytest.raises(NonFiniteError, match="at step 3"):
        train(Bad(), tmp_path, max_epochs=1, terminate_on_nan=True, accumulate_grad_batches=2)


def test_the_module_steps_with_the_index_of_the_windows_last_batch(tmp_path: Path) -> None:
    seen = []

    class Own(Line):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
            seen.append(batch_idx)
            super().optimizer_step(epoch, batch_idx, optimizer, closure)

    train(Own(), tmp_path, max_epochs=1, accumulate_grad_batches=3)
    train(Own(), tmp_path / "b", max_steps=2)
    assert seen == [2, 5, 7, 0, 1]


def test_who_wants_to_stop_waits_for_the_least_number_of_steps(tmp_path: Path) -> None:
    class Ends(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = True

    assert train(Line(), tmp_path, max_epochs=2, min_steps=3, callbacks=[Ends()]).global_step == 3


def test_each_batch_of_each_epoch_may_be_validated(tmp_path: Path) -> None:
    validated = []

    class Counts(Callback):
        def on_validation_start(self, trainer: Any, module: Any) -> None:
            validated.append(trainer.global_step)

    train(Line(), tmp_path, max_epochs=2, val_check_interval=1, num_sanity_val_steps=0, callbacks=[Counts()])
    assert validated == list(range(1, 17))


def test_a_mean_over_an_epoch_weighs_batches_by_their_samples(tmp_path: Path) -> None:
    class Means(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("index", float(batch_idx), on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def val_dataloader(self) -> Any:
            return None

    for accumulate in (1, 2):  # in the loop of single batches, and in that of windows
        trainer = stratagem.Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=accumulate,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            run_dir=tmp_path / str(accumulate),
        )
        trainer.fit(Means(count=9))  # 4, 4 and 1
        assert trainer.callback_metrics["index"] == pytest.approx((0 * 4 + 1 * 4 + 2 * 1) / 9)


def test_an_epochs_smaller_last_batch_counts_by_its_samples_in_a_global_batch(tmp_path: Path) -> None:
    """Windows of 8 + 3 samples, of 2 batches each, and of one: the gradient is the mean over samples."""
    ours, alone, plain = Descent(count=11), Descent(count=9), Descent(count=11)
    for module in (ours, alone):
        trainer = stratagem.Trainer(
            accelerator="cpu",
            max_epochs=1,
            global_batch_size=8,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            limit_val_batches=0,
            run_dir=tmp_path / str(module.count),
        )
        trainer.fit(module, DataLoader(samples(module.count), 2))
        optimizer = plain.configure_optimizers()
        plain.load_state_dict(Descent().state_dict())
        x, y = samples(module.count).tensors
        for rows in (slice(0, 8), slice(8, None)):
            optimizer.zero_grad()
            F.mse_loss(plain(x[rows]), y[rows]).backward()
            optimizer.step()
        torch.testing.assert_close(module.layer.weight, plain.layer.weight)
