"""The short form of the table, and that the table sees what is wrong. `make parity` tries all of it."""

from __future__ import annotations

import math
import time

import pytest
import torch
from averaging import AveragedPrepared, Averaging
from stratagem_testing.record import TrainingRecord

from tests.parity import cell
from tests.parity.columns import COLUMNS, SHORT, Column
from tests.parity.expected import OPEN, REFUSALS, expected_refusals
from tests.parity.kind import share_of, windows
from tests.parity.kinds import KINDS
from tests.parity.run import is_expected, sentence_of
from tests.parity.short import SHORT_KINDS


@pytest.mark.parametrize("column", SHORT)
@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_a_cell_is_equal_or_refused_as_listed(kind: str, column: str) -> None:
    outcome = cell.try_cell(kind, column)
    assert is_expected(outcome), sentence_of(outcome)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("target_copy", "ddp_fully_sharded"),
        ("gan", "model_parallel"),
        ("complex_parameters", "ddp_sharded"),
    ],
)
def test_a_cell_that_ended_in_an_error_of_torch(kind: str, column: str) -> None:
    outcome = cell.try_cell(kind, column)
    assert is_expected(outcome), sentence_of(outcome)


# The table itself ---------------------------------------------------------------------------------


class HalvedPrepared(AveragedPrepared):
    def average(self) -> None:
        super().average()
        for parameter in self.original_module.parameters():
            parameter.grad *= 0.5


class SleepingPrepared(AveragedPrepared):
    def average(self) -> None:
        time.sleep(3600)


class CrashingPrepared(AveragedPrepared):
    def average(self) -> None:
        raise ArithmeticError("one too many")


class Halves(Averaging):
    prepared = HalvedPrepared


class Sleeps(Averaging):
    prepared = SleepingPrepared


class Crashes(Averaging):
    prepared = CrashingPrepared


@pytest.mark.parametrize(
    ("strategy", "verdict", "sentence"),
    [
        (Averaging, "equal", ""),
        (Halves, "wrong", "of its update away"),
        (Sleeps, "hung", "not done after"),
        (Crashes, "crashed", "ArithmeticError: one too many"),
    ],
)
def test_a_strategy_gets_the_verdict_that_it_deserves(monkeypatch, strategy, verdict, sentence) -> None:
    monkeypatch.setitem(COLUMNS, "tried", Column(strategy))
    monkeypatch.setattr(cell, "HANGS_AFTER_S", 5.0 if strategy is Sleeps else 60.0)
    outcome = cell.try_cell("residual_mlp", "tried")
    assert outcome.verdict == verdict, outcome
    assert sentence in outcome.sentence


def _compared(**changed: torch.Tensor) -> tuple[str, float, str]:
    start = {"w": torch.zeros(4), "frozen": torch.ones(3), "count": torch.tensor(2)}
    weights = {"w": torch.full((4,), 0.01), "frozen": torch.ones(3), "count": torch.tensor(2)}
    plain = TrainingRecord(weights=weights, start=start, steps=2)
    trained = TrainingRecord(weights={**weights, **changed}, steps=2)
    return cell.compare(plain, [trained], 1e-4)


def test_differences_are_relative_to_the_update() -> None:
    assert _compared() == ("equal", 0.0, "")
    assert _compared(w=torch.full((4,), 0.01 * (1 + 5e-5)))[0] == "equal"
    verdict, difference, sentence = _compared(w=torch.zeros(4))  # nothing trained
    assert (verdict, round(difference, 4)) == ("wrong", 1.0)
    assert "w (saved) is 1.0e+00 of its update away" in sentence
    assert _compared(w=torch.full((4,), 0.0101))[0] == "wrong"
    assert _compared(frozen=torch.full((3,), 1.001))[0] == "wrong"
    assert _compared(count=torch.tensor(3))[0] == "wrong"
    assert _compared(w=torch.full((4,), math.nan))[0] == "wrong"
    assert "other tensors than there are: more" in _compared(more=torch.zeros(1))[2]


def test_copies_of_ranks_are_compared_too() -> None:
    weights = {"w": torch.ones(2)}
    plain = TrainingRecord(weights=weights, start={"w": torch.zeros(2)}, steps=1)
    equal = TrainingRecord(weights=weights, own=weights, steps=1)
    apart = TrainingRecord(weights=weights, own={"w": torch.full((2,), 1.5)}, steps=1)
    verdict, _, sentence = cell.compare(plain, [equal, apart], 1e-4)
    assert verdict == "wrong"
    assert "on rank 1" in sentence


def test_every_kind_says_why_its_tolerance_is_wider() -> None:
    for kind in KINDS.values():
        assert (kind.tolerance > 1e-4) <= bool(kind.tolerance_reason), kind.name
        assert kind.per_share == bool(kind.per_share_reason), kind.name
    assert len(KINDS) >= 90


def test_refusals_name_cells_that_there_are() -> None:
    for refusal in (*REFUSALS, *OPEN):
        assert set(refusal.kinds) <= set(KINDS), refusal
        assert refusal.columns
    assert all(refusal.piece for refusal in REFUSALS)
    assert all(cells.reason for cells in OPEN)
    assert expected_refusals("residual_mlp", "ddp") == []
    assert expected_refusals("lbfgs", "ddp_sharded") != []


def test_ranks_share_a_batch_out() -> None:
    batch = {"x": torch.arange(8), "more": (torch.arange(8.0), "kept")}
    assert [share_of(batch, share, 4)["x"].tolist() for share in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert share_of(batch, 1, 2)["more"][1] == "kept"
    assert [len(window) for window in windows(range(8), 3)] == [3, 3, 2]
