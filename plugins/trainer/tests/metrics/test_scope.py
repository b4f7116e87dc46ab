"""`Scope`: defaults of how values are logged, what is refused, and what comes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_trainer.metrics.scope import LogOptions, Scope

from stratagem.errors import LoggingError


def options(scope: Scope, name: str = "x", value: Any = 1.0, **how: Any) -> LogOptions:
    given = {"prog_bar": False, "on_step": None, "on_epoch": None, "reduce_fx": "mean", "sync_dist": None}
    return scope.read_options(name, value, **{**given, **how})


def scopes() -> tuple[Scope, Scope, Scope]:
    """In a training step, between two of them, and in an evaluation."""
    step, between, evaluation = Scope("train"), Scope("train"), Scope("validate")
    step.in_step = True
    return step, between, evaluation


def test_defaults_are_by_step_in_training_and_by_epoch_elsewhere() -> None:
    step, between, evaluation = scopes()
    assert options(step)[1:] == (True, False, "mean", False, True)
    assert options(between)[1:] == (False, True, "mean", False, True)
    assert options(evaluation)[1:] == (False, True, "mean", True, True)
    assert [each.is_training for each in (step, between, evaluation)] == [True, True, False]
    assert [Scope(stage).in_step for stage in ("train", "validate", "test")] == [False, True, True]


def test_what_is_given_wins() -> None:
    step, between, evaluation = scopes()
    how = {"on_step": False, "on_epoch": True, "sync_dist": True, "prog_bar": True, "reduce_fx": "max"}
    assert options(step, **how) == (True, False, True, "max", True, True)
    assert options(between, on_epoch=False)[1:3] == (False, False)
    assert options(evaluation, on_step=True, sync_dist=False)[1:] == (True, True, "mean", False, True)


def test_names_of_what_is_logged_by_step_and_epoch() -> None:
    for on_step, on_epoch, keys in (
        (True, True, ("x_step", "x_epoch", "x")),
        (True, False, ("x",)),
        (False, True, ("x",)),
    ):
        made = LogOptions(False, on_step, on_epoch, "mean", False)
        assert made.keys("x") == keys
        assert made.step_key("x") == ("x_step" if on_epoch else "x")
        assert made.epoch_key("x") == ("x_epoch" if on_step else "x")


def test_a_name_is_logged_in_one_way() -> None:
    step, _, _ = scopes()
    options(step)
    options(step)
    message = (
        "'x' was logged with .*on_epoch=False.* before, and is logged with .*on_epoch=True.* now: use the"
    )
    with pytest.raises(LoggingError, match=message):
        options(step, on_epoch=True)


def test_misuse_is_refused() -> None:
    step, between, evaluation = scopes()
    for scope, name, value, how, message in (
        (step, "step", 1.0, {}, "a column of every row"),
        (evaluation, "epoch", 1.0, {}, "a column of every row"),
        (Scope("predict"), "x", 1.0, {}, "while predicting"),
        (between, "x", 1.0, {"on_step": True}, "while no step is running"),
        (step, "x", torch.zeros(2), {}, r"shape \(2,\)"),
        (step, "x", torch.zeros(0), {}, r"shape \(0,\)"),
        (step, "x", torch.zeros(1, dtype=torch.complex64), {}, "is complex"),
        (step, "x", 1.0, {"reduce_fx": "median"}, "must be one of mean, sum, min, max"),
    ):
        with pytest.raises(LoggingError, match=message):
            options(scope, name, value, **how)
    for reduce_fx in ("mean", "sum", "min", "max"):
        options(step, reduce_fx, torch.ones(1, 1), reduce_fx=reduce_fx)


def test_two_names_may_not_come_out_as_one() -> None:
    step, _, _ = scopes()
    options(step, "x", on_epoch=True)
    options(step, "x_steps")
    for other in ("x_step", "x_epoch"):
        with pytest.raises(LoggingError, match=f"'{other}' and 'x' would both be '{other}'"):
            options(step, other)
    again, _, _ = scopes()
    options(again, "x_epoch")
    options(again, "x")  # by step alone, there is no x_epoch of it


def added(scope: Scope, name: str, *values: tuple[Any, int], **how: Any) -> None:
    for value, weight in values:
        scope.add(name, value, weight, options(scope, name, value, **how))


def test_a_step_is_taken_once_and_keeps_the_last_value() -> None:
    step, _, _ = scopes()
    added(step, "x", (1.0, 2), (3.0, 4))
    added(step, "e", (1.0, 2), on_step=False, on_epoch=True)
    assert step.take_step() == ({"x": 3.0}, {"x": 4})
    assert step.take_step() == ({}, {})
    assert step.options("x").on_step


def test_sums_are_taken_once() -> None:
    step, _, _ = scopes()
    added(step, "mean", (1.0, 3), (5.0, 1), on_epoch=True)
    added(step, "max", (1.0, 1), (torch.tensor(5.0), 1), on_epoch=True, on_step=False, reduce_fx="max")
    added(step, "now", (1.0, 3))
    assert step.take_sums() == {"mean": ("mean", 2.0, 4), "max": ("max", 5.0, 2)}
    assert step.take_sums() == {}


def test_rows_of_an_evaluation_are_its_steps_that_logged() -> None:
    _, _, evaluation = scopes()
    assert not evaluation.had_batches
    added(evaluation, "x", (1.0, 2), on_step=True)
    added(evaluation, "own", (torch.tensor(7.0), 2), on_step=True, on_epoch=False, sync_dist=False)
    evaluation.end_evaluation_step()
    evaluation.end_evaluation_step()  # it logged nothing
    added(evaluation, "x", (3.0, 1), on_step=True)  # after the last step
    assert evaluation.take_rows() == [
        {"x_step": ("mean", 1.0, 2), "own": ("first", 7.0, 2)},
        {"x_step": ("mean", 3.0, 1)},
    ]
    assert evaluation.take_rows() == []
    assert evaluation.had_batches


def test_a_training_step_is_no_row_of_an_evaluation() -> None:
    step, _, _ = scopes()
    added(step, "x", (1.0, 2))
    assert step.take_rows() == []
    assert step.take_step().values == {"x": 1.0}


def test_what_was_added_up_is_kept_in_a_checkpoint() -> None:
    step, again, _ = scopes()
    again.in_step = True
    added(step, "x", (1.0, 3), (5.0, 1), on_epoch=True)
    state = step.state()
    again.load(state)
    assert again.state() == state
    added(again, "x", (4.0, 4), on_epoch=True)
    assert again.take_sums() == {"x": ("mean", 3.0, 8)}
    empty, _, _ = scopes()
    empty.load(state)
    assert empty.take_sums() == {"x": ("mean", 2.0, 4)}
    assert empty.options("x").on_epoch


def test_a_module_that_logs_in_another_way_than_its_checkpoint_begins_again() -> None:
    step, again, _ = scopes()
    again.in_step = True
    added(step, "x", (1.0, 3), on_epoch=True)
    added(step, "y", (1.0, 3), on_epoch=True)
    again.load(step.state())
    added(again, "x", (7.0, 1), on_epoch=True, reduce_fx="max")
    assert again.take_sums() == {"x": ("max", 7.0, 1), "y": ("mean", 1.0, 3)}
    with pytest.raises(LoggingError, match="use the same options"):
        options(again, "x", on_epoch=True)
