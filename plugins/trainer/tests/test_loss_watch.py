"""A loss that isn't finite: said once, with its step; or the end of the run."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import train
from small import Line, TwoPlayers
from stratagem_trainer.loops import loss_watch
from stratagem_trainer.loops.loss_watch import FiniteCheck, LossWatch, all_finite, first_non_finite
from stratagem_trainer.metrics.metrics import Metrics
from threads import on_threads

from stratagem.errors import NonFiniteError, WorkerError


class Breaks(Line):
    """Its loss is `value` at batch 5 of 8, on the ranks given."""

    def __init__(self, value: float = math.nan, ranks: tuple[int, ...] = (0, 1)) -> None:
        super().__init__(count=64)
        self.value, self.ranks = value, ranks

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if batch_idx == 4 and self.global_rank in self.ranks else {"loss": loss}


@pytest.mark.parametrize(("value", "sentence"), [(math.nan, "nan"), (math.inf, "inf")])
@pytest.mark.parametrize("every", [1, 3, 50])
def test_there_is_one_warning_with_the_step(value: float, sentence: str, every: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"the loss is {sentence} at step 5: the run goes on") as seen:
        train(Breaks(value), tmp_path, log_every_n_steps=every, max_epochs=1)
    assert len([each for each in seen if "the loss" in str(each.message)]) == 1


def test_steps_are_optimizer_steps(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the loss is nan at step 3:"):
        train(Breaks(), tmp_path, accumulate_grad_batches=2, max_epochs=1)


def test_it_ends_the_run_before_the_step(tmp_path: Path) -> None:
    module = Breaks()
    with pytest.raises(
        NonFiniteError, match="the loss is nan at step 5, which isn't finite; all parameters still are"
    ):
        train(module, tmp_path, terminate_on_nan=True)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_a_parameter_ends_the_run_after_the_step(tmp_path: Path) -> None:
    class Root(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            # Zero, with a gradient that is NaN.
            zero = (self.layer.weight * 0).square().sum()
            return super().training_step(batch, batch_idx) + (zero.sqrt() if batch_idx == 2 else 0.0)

    with pytest.raises(NonFiniteError, match=r"the parameter layer.weight isn't finite after step 3"):
        train(Root(), tmp_path, terminate_on_nan=True)


class Manual(TwoPlayers):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.log("fine", torch.tensor(math.inf))
        self.log("g_loss", torch.tensor(math.nan if batch_idx == 3 else 1.0))


def test_manual_optimization_is_watched_by_what_it_logs(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="g_loss is nan at step 4"):
        train(Manual(), tmp_path, max_epochs=1)
    with pytest.raises(NonFiniteError, match="g_loss is nan at step 4"):
        train(Manual(), tmp_path, terminate_on_nan=True)


def test_a_closure_is_watched(tmp_path: Path) -> None:
    class Search(Breaks):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)

    with pytest.raises(NonFiniteError, match="the loss is nan at step 5"):
        train(Search(), tmp_path, terminate_on_nan=True)


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ((1,), "the loss isn't finite at step 5, on rank 1:"),
        ((0, 2), "the loss is nan at step 5, on ranks 0, 2:"),
    ],
)
def test_rank_0_tells_of_all_ranks(ranks: tuple[int, ...], sentence: str) -> None:
    def work(collectives: Any) -> None:
        metrics = Metrics(collectives, [], 4)
        for step in range(1, 13):
            # A step later, all have it.
            is_bad = step >= 5 if collectives.rank in ranks else step >= 6
            metrics.losses.add(step, torch.tensor(math.nan if is_bad else 1.0))
            metrics.end_step(step, 0)
            metrics.end_late()
            assert step < 8 or metrics.losses.is_reported

    with pytest.warns(UserWarning, match=sentence) as seen:
        on_threads(3, work)
    assert len(seen) == 1


def test_one_rank_ends_the_run_of_all(tmp_path: Path) -> None:
    # Rank 0 has stepped with rank 1's gradients by then, and may be the first to end.
    with pytest.raises(
        WorkerError, match=r"rank 1.*the loss is nan at step 5|rank 0.*isn't finite after step 5"
    ):
        train(Breaks(ranks=(1,)), tmp_path, strategy="ddp", devices=2, terminate_on_nan=True)


def test_nothing_is_waited_for_between_looks() -> None:
    watch = LossWatch(dict)
    for step in range(1, 60):
        watch.add(step, torch.tensor(math.nan if step > 20 else 1.0))
        assert watch.found is None
    assert str(watch.look()) == "the loss is nan at step 21"


def test_finite_losses_on_the_cpu_are_not_kept() -> None:
    watch = LossWatch(dict)
    for step in range(1, 200):
        watch.add(step, torch.tensor(1.0))
    assert not watch.is_due
    for step in range(200, 264):
        assert not watch.is_due
        watch.add(step, torch.tensor(math.nan))
    assert watch.is_due


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_of_one_element_is_looked_at_whatever_its_shape(shape: tuple[int, ...]) -> None:
    watch = LossWatch(dict)
    watch.add(1, torch.full(shape, math.inf))
    assert str(watch.look()) == "the loss is inf at step 1"
    watch.add(2, torch.full(shape, math.nan))
    assert str(watch.look()) == "the loss is inf at step 1"


def test_a_rank_without_a_part_of_any_parameter_has_nothing_that_is_not_finite() -> None:
    assert all_finite([])
    assert all_finite([torch.empty(0, 3)])
    assert all_finite([torch.empty(0), torch.full((3,), 3e38)])
    for bad in (math.nan, math.inf, -math.inf):
        assert not all_finite([torch.ones(2), torch.tensor([0.0, bad])])
        assert first_non_finite([("a", torch.ones(2)), ("b", torch.tensor([0.0, bad]))]) == "b"
    assert first_non_finite([("a", torch.ones(2)), ("b", torch.empty(0))]) == ""


def test_losses_of_any_kind_are_looked_at() -> None:
    watch = LossWatch(dict)
    for step, loss in enumerate(
        [torch.ones((), dtype=torch.bfloat16), torch.full((1,), 1e300, dtype=torch.float64), None, "no loss"],
        1,
    ):
        watch.add(step, loss)
    with warnings.catch_warnings():
        assert watch.look() is None


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (torch.ones(3), None),
        (torch.ones(0), None),
        (torch.tensor([1.0, math.nan]), "the loss is nan at step 1"),
        ({"loss": torch.tensor(math.inf)}, "the loss is inf at step 1"),
        ({"loss": math.nan}, None),
    ],
)
def test_losses_of_any_shape_and_container(loss: Any, found: str | None) -> None:
    watch = LossWatch(dict)
    watch.add(1, loss)
    assert watch.look() is None if found is None else str(watch.look()) == found


def test_the_first_value_is_found_and_none_after_it_is_kept() -> None:
    watch = LossWatch(dict)
    for step, value in enumerate((1.0, math.nan, math.inf), 1):
        watch.add(step, torch.tensor(value))
    assert str(watch.look()) == "the loss is nan at step 2"
    watch.add(4, torch.tensor(math.inf))
    assert (str(watch.look()), watch.is_due) == ("the loss is nan at step 2", False)


def test_logged_values_count_where_there_is_no_loss() -> None:
    logged = {"fine": 1.0, "far": math.inf, "wide": -math.inf, "own": torch.tensor(2.0)}
    watch = LossWatch(lambda: logged)
    watch.add(1, None)
    assert (watch.without_loss, watch.look()) == (1, None)
    logged["broken"] = math.nan
    watch.add(2, torch.tensor(1.0))
    assert (watch.without_loss, watch.look()) == (1, None)
    watch.add(3, None)
    assert (watch.without_loss, str(watch.look())) == (2, "broken is nan at step 3")


def test_a_look_is_due_after_so_many_values_or_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 500.0
    monkeypatch.setattr(loss_watch, "time", SimpleNamespace(perf_counter=lambda: now))
    watch = LossWatch(dict)
    now += 1000.0
    assert not watch.is_due
    watch.add(1, torch.tensor(math.nan))
    assert watch.is_due
    watch.look()
    watch.found = None
    watch.add(2, torch.tensor(math.nan))
    now += 0.5
    assert not watch.is_due
    now += 1.0
    assert watch.is_due
    for step in range(70):
        watch.add(step, torch.tensor(math.nan))
    now -= 1.5
    assert watch.is_due


@pytest.mark.parametrize("broken", [(), ("first",), ("second",), ("first", "second")])
def test_which_parameter_an_error_names(broken: tuple[str, ...]) -> None:
    module = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1) for name in ("first", "second")})
    with torch.no_grad():
        for name in broken:
            module[name].weight[0, 1] = math.nan
    losses = LossWatch(dict)
    check = FiniteCheck(losses, module, ends_run=True)
    check.check_loss(3, torch.tensor(1.0))
    assert not losses.is_reported
    words = f"the parameter {broken[0]}.weight isn't either" if broken else "all parameters still are"
    with pytest.raises(NonFiniteError, match=f"the loss is nan at step 4, which isn't finite; {words}"):
        check.check_loss(4, torch.tensor(math.nan))
    assert losses.is_reported
    losses.is_reported = False
    if not broken:
        check.check_parameters(5)
        assert not losses.is_reported
        return
    with pytest.raises(NonFiniteError, match=f"the parameter {broken[0]}.weight isn't finite after step 5"):
        check.check_parameters(5)
    assert losses.is_reported


def test_a_check_that_does_not_end_the_run_only_keeps_losses() -> None:
    losses = LossWatch(dict)
    check = FiniteCheck(losses, torch.nn.Linear(1, 1), ends_run=False)
    check.check_loss(1, torch.tensor(math.nan))
    assert (check.ends_run, losses.found, losses.is_reported) == (False, None, False)
    assert str(losses.look()) == "the loss is nan at step 1"
