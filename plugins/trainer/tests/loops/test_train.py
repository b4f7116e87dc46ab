"""The loop's own decisions: when gradients are reduced, which steps count, where it begins and ends."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import batches, train
from small import Closure, Descent, Line, TwoPlayers

import stratagem
from stratagem import PreparedWrapper, hookimpl
from stratagem.errors import ConfigError, DataError


class Plain(Line):
    """Nothing to validate on."""

    def val_dataloader(self) -> Any:
        return None


class Notes:
    """Wraps what `setup` answers, and notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @hookimpl(wrapper=True)
    def setup(self, request: Any) -> Any:
        prepared, calls = (yield), self.calls

        class Noting(PreparedWrapper):
            def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
                calls.append((args[2], divisor, sync))
                return super().forward_backward(*args, divisor=divisor, sync=sync)

            def step(self, index: int, closure: Any = None) -> bool:
                calls.append(f"step {index}")
                return super().step(index, closure)

            def zero_grad(self, index: int) -> None:
                calls.append(f"zero {index}")
                super().zero_grad(index)

            def clip(self, index: int, clipping: Any) -> Any:
                calls.append(f"clip {index}")
                return super().clip(index, clipping)

        return Noting(prepared)


def test_gradients_are_reduced_with_the_last_batch_of_a_window_alone(tmp_path: Path) -> None:
    notes = Notes()
    train(Plain(), tmp_path, accumulate_grad_batches=3, max_epochs=1, plugins=[notes])
    whole = [(False, False, True), (False, False, True)]
    expected: list[Any] = []
    for window, syncs in enumerate(whole):
        expected += [(3 * window + offset, 3, sync) for offset, sync in enumerate(syncs)]
        expected += ["step 0", "zero 0"]
    assert notes.calls == [*expected, (6, 2, False), (7, 2, True), "step 0", "zero 0"]


def test_a_closures_window_is_reduced_with_its_last_batch(tmp_path: Path) -> None:
    class Once(Closure):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=1)

    notes = Notes()
    train(Once(), tmp_path, accumulate_grad_batches=3, limit_train_batches=5, max_epochs=1, plugins=[notes])
    first = [(0, 3, False), (1, 3, False), (2, 3, True)]
    assert notes.calls == ["step 0", "zero 0", *first, "zero 0", "step 0", "zero 0", *last(2), "zero 0"]


def last(size: int) -> list[Any]:
    return [(3 + offset, size, offset + 1 == size) for offset in range(size)]


def test_all_optimizers_are_clipped_stepped_and_zeroed(tmp_path: Path) -> None:
    class Two(Plain):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD([self.layer.weight], 0.1), torch.optim.SGD([self.layer.bias], 0.1)]

    notes = Notes()
    trainer = train(Two(), tmp_path, max_steps=1, gradient_clip_val=0.5, plugins=[notes])
    steps = ["clip 0", "step 0", "clip 1", "step 1"]
    assert notes.calls == [(0, 1, True), *steps, "zero 0", "zero 1"]
    assert trainer.global_step == 1


class Overflows(Plain):
    """Its scaled gradients overflow in batch 2: of all parameters, or of the second optimizer's alone.

    Float16 scales the loss by 2¹⁶, which is too much for gradients above 5e33.
    """

    def __init__(self, second_only: bool) -> None:
        super().__init__()
        self.second_only, self.steps_seen = second_only, []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self(batch[0]).float().square().mean()
        if batch_idx == 2:
            overflowing = (
                self.layer.bias.sum() if self.second_only else sum(p.sum() for p in self.parameters())
            )
            loss = loss + overflowing * 1e36
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        weight, bias = (torch.optim.SGD([p], 0.01) for p in self.parameters())
        schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (weight, bias)]
        return [weight, bias], [{"scheduler": each, "interval": "step"} for each in schedulers]


class Steps(stratagem.Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rates: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps.append(trainer.global_step)
        self.rates.append(trainer.prepared.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("second_only", "steps"),
    [(False, [1, 2, 2, 3, 4]), (True, [1, 2, 3, 4, 5])],  # one optimizer that has stepped is a step
)
def test_a_step_counts_where_any_optimizer_has_stepped(
    second_only: bool, steps: list[int], tmp_path: Path
) -> None:
    notes = Steps()
    trainer = train(
        Overflows(second_only),
        tmp_path,
        precision="16-mixed",
        limit_train_batches=5,
        max_epochs=1,
        callbacks=notes,
    )
    assert notes.steps == steps
    assert trainer.global_step == steps[-1]
    assert notes.rates == [0.01 * 0.5**step for step in steps]


def test_a_manual_step_counts_once_and_not_where_nothing_stepped(tmp_path: Path) -> None:
    class Rests(TwoPlayers):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx != 1:
                super().training_step(batch, batch_idx)

    notes = Steps()
    train(Rests(), tmp_path, limit_train_batches=3, max_epochs=1, callbacks=notes)
    assert notes.steps == [1, 1, 2]


class Moments(stratagem.Callback):
    def __init__(self) -> None:
        self.moments: list[Any] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.moments.append(("epoch", trainer.current_epoch))

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.moments.append(("start", batch_idx))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert (outputs is None) == isinstance(module, TwoPlayers)
        self.moments.append(("end", batch_idx))

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(("evaluated", trainer.global_step))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.moments.append(("epoch end", trainer.current_epoch))


def test_batches_are_numbered_from_the_epochs_first(tmp_path: Path) -> None:
    each = [(moment, idx) for idx in range(4) for moment in ("start", "end")]
    whole = [("epoch", 0), *each, ("epoch end", 0), ("epoch", 1), *each, ("epoch end", 1)]
    by_window = [
        (moment, first + offset) for first in (0, 2) for moment in ("start", "end") for offset in (0, 1)
    ]
    closures = [("epoch", 0), *by_window, ("epoch end", 0), ("epoch", 1), *by_window, ("epoch end", 1)]
    for make, expected in ((Plain, whole), (TwoPlayersPlain, whole), (ClosurePlain, closures)):
        moments = Moments()
        how = {} if make is TwoPlayersPlain else {"accumulate_grad_batches": 2}
        train(make(), tmp_path, limit_train_batches=4, callbacks=moments, **how)
        assert moments.moments == expected


class TwoPlayersPlain(TwoPlayers):
    def val_dataloader(self) -> Any:
        return None


class ClosurePlain(Closure):
    def val_dataloader(self) -> Any:
        return None


def test_max_steps_ends_an_epoch_only_after_its_last_batch(tmp_path: Path) -> None:
    for steps, ended in ((7, []), (8, [("epoch end", 0)]), (9, [("epoch end", 0)])):
        moments = Moments()
        trainer = train(Plain(), tmp_path, max_steps=steps, max_epochs=None, callbacks=moments)
        assert trainer.global_step == steps
        assert [each for each in moments.moments if each[0] == "epoch end"] == ended
        assert trainer.current_epoch == len(ended)


def test_who_stops_stops_after_the_batch_and_its_validation(tmp_path: Path) -> None:
    class Stops(Moments):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, *args)
            trainer.should_stop = trainer.global_step == 4

    moments = Stops()
    trainer = train(Line(), tmp_path, val_check_interval=2, callbacks=moments)
    assert [each for each in moments.moments if each[0] != "start"][-3:] == [
        ("end", 2),
        ("end", 3),
        ("evaluated", 4),
    ]
    assert (trainer.global_step, trainer.current_epoch) == (4, 0)


def test_validates_once_where_the_interval_ends_with_the_epoch(tmp_path: Path) -> None:
    for how, steps in (
        ({"val_check_interval": 4}, [4, 8, 12, 16]),
        ({"val_check_interval": 8}, [8, 16]),
        ({"val_check_interval": 5}, [5, 13]),
        ({}, [8, 16]),
        ({"check_val_every_n_epoch": 3}, []),
        ({"limit_val_batches": 0}, []),
    ):
        moments = Moments()
        train(Line(), tmp_path, callbacks=moments, **how)
        assert [step for moment, step in moments.moments if moment == "evaluated"] == steps, how


def test_clipping_bounds_what_a_step_uses(tmp_path: Path) -> None:
    free, clipped = Descent(), Descent()
    before = torch.cat([p.detach().flatten().clone() for p in free.parameters()])
    train(free, tmp_path, max_steps=1)
    train(clipped, tmp_path, max_steps=1, gradient_clip_val=0.25)
    moved = [
        (torch.cat([p.detach().flatten() for p in module.parameters()]) - before).norm().item() / 0.01
        for module in (free, clipped)
    ]
    assert moved[0] > 1
    assert moved[1] == pytest.approx(0.25, rel=1e-3)


def test_epochs_are_counted_from_one_for_schedulers(tmp_path: Path) -> None:
    class Halves(Plain):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 1e-3)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": scheduler, "frequency": 3}]

    notes = Steps()
    train(Halves(), tmp_path, max_epochs=7, limit_train_batches=1, callbacks=notes)
    assert notes.rates == [1e-3] * 3 + [0.5e-3] * 3 + [0.25e-3]


def test_an_epoch_of_unknown_length_ends_with_its_batches(tmp_path: Path) -> None:
    class Stream(Plain):
        def train_dataloader(self) -> Any:
            return iter_twice(list(batches(5)))

    for limit, steps in ((None, 10), (3, 6), (9, 10)):
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            max_epochs=2,
            limit_train_batches=limit,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            run_dir=tmp_path / "run",
        )
        trainer.fit(Stream())
        assert (trainer.global_step, trainer.current_epoch) == (steps, 2)


def iter_twice(given: list[Any]) -> Any:
    class Again:
        def __iter__(self) -> Any:
            return iter(given)

    return Again()


def test_a_fraction_of_an_unknown_length_is_refused(tmp_path: Path) -> None:
    class Stream(Plain):
        def train_dataloader(self) -> Any:
            return iter_twice(list(batches(2)))

    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", limit_train_batches=0.5, run_dir=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match="is a fraction, but this loader has no length"):
        trainer.fit(Stream())


class WatchedClosure(ClosurePlain):
    """Notes the number of each batch wherever it gets one, and leaves a step out."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[Any] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.numbers.append(("start", batch_idx))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.is_last_batch:
            self.numbers.append(("last", batch_idx))
        return super().training_step(batch, batch_idx)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        self.numbers.append(("step", batch_idx))
        if batch_idx != 5:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.numbers.append(("end", batch_idx, outputs is None))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=1)


def test_batches_of_a_closure_have_their_numbers_everywhere(tmp_path: Path) -> None:
    module = WatchedClosure()
    train(module, tmp_path, accumulate_grad_batches=3, limit_train_batches=8, max_epochs=1)
    expected: list[Any] = []
    for window in ([0, 1, 2], [3, 4, 5], [6, 7]):
        expected += [("start", number) for number in window]
        expected += [("step", window[-1])]
        expected += [("last", 7)] if 7 in window else []
        expected += [("end", number, window[0] == 3) for number in window]
    assert module.numbers == expected


@pytest.mark.parametrize("returned", [0, 1])
def test_an_epoch_without_any_loss_is_refused_and_one_with_one_is_not(returned: int, tmp_path: Path) -> None:
    class Nearly(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) if batch_idx < returned else None

    refused = (
        pytest.raises(DataError, match="returned None for all 4 batches") if not returned else nullcontext()
    )
    with refused:
        train(Nearly(), tmp_path, limit_train_batches=4, max_epochs=1)
