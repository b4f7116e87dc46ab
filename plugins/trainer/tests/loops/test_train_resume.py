"""Where a resumed fit begins, and what it owes of what was over."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import SaveAt, train
from small import Closure, Line, TwoPlayers, samples
from stratagem_launch import Preempted
from torch.utils.data import DataLoader

import stratagem


class Plain(Line):
    """Nothing to validate on."""

    def val_dataloader(self) -> Any:
        return None


class Moments(stratagem.Callback):
    def __init__(self) -> None:
        self.moments: list[Any] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.moments.append(("epoch", trainer.current_epoch))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.moments.append(("batch", batch_idx))

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(("evaluated", trainer.global_step))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.moments.append(("epoch end", trainer.current_epoch))


@pytest.mark.parametrize("at", [3, 4, 8, 11])
def test_a_resumed_epoch_begins_where_it_was(tmp_path: Path, at: int) -> None:
    """Saved before the validation that was due, in mid-epoch and at its end."""
    whole, rest = Moments(), Moments()
    path = tmp_path / "ckpt"
    train(Line(), tmp_path, callbacks=[whole, SaveAt(at, path)], val_check_interval=4)
    train(Line(), tmp_path, path, callbacks=rest, val_check_interval=4)
    begin = 0 if at <= 8 else whole.moments.index(("epoch", 1))
    assert rest.moments == whole.moments[whole.moments.index(("batch", (at - 1) % 8), begin) + 1 :]


@pytest.mark.parametrize("at", [3, 8])
def test_a_stop_that_comes_before_the_first_batch_ends_a_fit_there(tmp_path: Path, at: int) -> None:
    """In mid-epoch, and at the beginning of the second one."""

    class Signalled(Line):
        def on_fit_start(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    path, moments, module = tmp_path / "ckpt", Moments(), Signalled()
    train(Line(), tmp_path, callbacks=[SaveAt(at, path)])
    handler = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        with pytest.raises(Preempted) as stopped:
            train(module, tmp_path, path, callbacks=moments)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert (stopped.value.step, [each for each in moments.moments if each[0] == "batch"]) == (at, [])


@pytest.mark.parametrize("at", [5, 6])
@pytest.mark.parametrize("cls", [TwoPlayers, Closure])
def test_an_epoch_of_other_loops_is_resumed_where_it_was(tmp_path: Path, cls: type[Line], at: int) -> None:
    """Of a module that steps by hand, and of an optimizer that evaluates the loss itself."""
    whole, rest = Moments(), Moments()
    path = tmp_path / "ckpt"
    train(cls(), tmp_path, callbacks=[whole, SaveAt(at, path)], max_epochs=1)
    train(cls(), tmp_path, path, callbacks=rest, max_epochs=1)
    assert whole.moments[1:9] == [("batch", index) for index in range(8)]
    assert rest.moments == whole.moments[whole.moments.index(("batch", at - 1)) + 1 :]


def test_a_run_that_is_over_goes_no_further(tmp_path: Path) -> None:
    path, moments = tmp_path / "ckpt", Moments()
    train(Plain(), tmp_path, max_steps=3, callbacks=SaveAt(3, path))
    for max_steps in (3, 2):
        resumed = train(Plain(), tmp_path, path, callbacks=moments, max_steps=max_steps)
        assert (moments.moments, resumed.global_step) == ([], 3)


def test_a_run_of_unknown_length_that_is_over_goes_no_further(tmp_path: Path) -> None:
    class Stream(Plain):
        def train_dataloader(self) -> Any:
            return Again()

    def fit(ckpt_path: Path | None = None, **how: Any) -> Any:
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            max_steps=3,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            run_dir=tmp_path / "run",
            **how,
        )
        trainer.fit(Stream(), ckpt_path=ckpt_path)
        return trainer

    path, moments = tmp_path / "ckpt", Moments()
    fit(callbacks=SaveAt(3, path))
    assert (fit(path, callbacks=moments).global_step, moments.moments) == (3, [])


class Again:
    """Batches without a known number."""

    def __iter__(self) -> Any:
        return iter(list(DataLoader(samples(16), 4)))


@pytest.mark.parametrize(
    ("make", "how", "owed"),
    [
        pytest.param(Line, {"max_steps": 4, "val_check_interval": 4}, [("evaluated", 4)], id="validation"),
        pytest.param(Plain, {"max_steps": 8}, [("epoch end", 0)], id="end of the epoch"),
        pytest.param(
            Plain, {"max_steps": 1, "limit_train_batches": 1}, [("epoch end", 0)], id="of one batch"
        ),
        pytest.param(
            Line, {"max_steps": 8}, [("evaluated", 8), ("epoch end", 0)], id="validation and end of the epoch"
        ),
    ],
)
def test_what_was_due_when_a_run_was_over_is_made_up_for(
    make: Any, how: Any, owed: Any, tmp_path: Path
) -> None:
    path, whole, rest = tmp_path / "ckpt", Moments(), Moments()
    train(make(), tmp_path, callbacks=[SaveAt(how["max_steps"], path), whole], **how)
    train(make(), tmp_path, path, callbacks=rest, **how)
    assert rest.moments == owed == whole.moments[-len(owed) :]


class Drawn(Plain):
    """Its loader draws each epoch's order from the global generator, as the dropout does its numbers."""

    def train_dataloader(self) -> Any:
        return DataLoader(samples(16), 4, shuffle=True)


@pytest.mark.parametrize("at", [2, 4, 6])
def test_random_numbers_go_on(at: int, tmp_path: Path) -> None:
    """In mid-epoch, and between two, where the next order is still to be drawn."""

    class SaveAtEnd(SaveAt):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if trainer.global_step == self.step:
                trainer.save_checkpoint(self.path)

    def fit(module: Any, ckpt_path: Path | None = None, **how: Any) -> None:
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            max_epochs=3,
            use_distributed_sampler=False,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            run_dir=tmp_path / "run",
            seed=1,
            **how,
        )
        trainer.fit(module, ckpt_path=ckpt_path)

    whole, rest, path = Drawn(dropout=0.3), Drawn(dropout=0.3), tmp_path / "ckpt"
    fit(whole, callbacks=(SaveAt if at % 4 else SaveAtEnd)(at, path))
    torch.manual_seed(999)
    fit(rest, path)
    assert rest.seen == whole.seen[4 * at :]
    assert torch.equal(rest.layer.weight, whole.layer.weight)


def test_a_checkpoint_that_the_module_saves_at_an_epochs_end_begins_the_next(tmp_path: Path) -> None:
    class Saves(Plain):
        def on_train_epoch_end(self) -> None:
            self.trainer.save_checkpoint(tmp_path / f"after_{self.current_epoch}")

    train(Saves(), tmp_path, max_epochs=1)
    moments = Moments()
    train(Plain(), tmp_path / "rest", tmp_path / "after_0", max_epochs=2, callbacks=moments)
    assert moments.moments == [("epoch", 1), *(("batch", index) for index in range(8)), ("epoch end", 1)]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_validation_that_was_done_counts_at_another_batch_size(tmp_path: Path, size: int) -> None:
    """Saved after the validation at 4 of 8 batches of 4 samples: the next one is due at the end of 32 samples."""

    class Saves(stratagem.Callback):
        def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "ckpt")

    def fit(batch_size: int, path: Path | None, callback: stratagem.Callback) -> None:
        trainer = stratagem.Trainer(
            accelerator="cpu",
            max_epochs=1,
            val_check_interval=0.5,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            callbacks=[callback],
            run_dir=tmp_path / str(batch_size),
        )
        trainer.fit(Line(count=32, batch_size=batch_size), ckpt_path=path)

    def batches_before_validations(batch_size: int) -> list[int]:
        class Counts(stratagem.Callback):
            count = 0

            def on_train_batch_end(self, *args: Any) -> None:
                self.count += 1

            def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
                counts.append(self.count)

        counts: list[int] = []
        fit(batch_size, tmp_path / "ckpt", Counts())
        return counts

    fit(4, None, Saves())
    assert batches_before_validations(size) == [16 // size]
