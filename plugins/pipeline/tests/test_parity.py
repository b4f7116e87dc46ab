"""A pipeline gives the numbers of plain torch in one process, whatever its shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import (
    KeepingSurrounded,
    KeepingTied,
    Logits,
    Returned,
    Says,
    Skipping,
    Stack,
    StackedLlama,
    Surrounded,
    Tied,
    expect_plain,
    train_late,
    two_copies,
    two_stages,
)
from stratagem_pipeline.schedules import SCHEDULES
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from torch.nn import functional as F


@pytest.fixture
def subject(tmp_path: Path) -> StrategySubject:
    return two_stages(tmp_path)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_schedule(subject: StrategySubject, processes: int) -> None:
    expect_plain(subject.at(processes), Stack(), [{"schedule": name} for name in SCHEDULES])


@pytest.mark.long
def test_copies_of_a_pipeline(subject: StrategySubject) -> None:
    four = replace(subject.at(4), data_ranks=two_copies)
    options = [{"schedule": name, "data_parallel_size": 2} for name in ("gpipe", "zbv")]
    expect_plain(four, Stack(accumulate=2, max_norm=0.3), options)
    expect_plain(four, Surrounded(), options[:1])


def test_balances_micro_batches_and_recomputation(subject: StrategySubject) -> None:
    options = [
        {"balance": [9, 2]},
        {"balance": [1, 4, 4, 2], "schedule": "interleaved_1f1b", "micro_batches": 6},
        {"balance": "activations", "micro_batches": 5},
        {"balance": "time"},
        {"activation_checkpointing": True, "schedule": "looped_bfs", "stages_per_rank": 3},
    ]
    expect_plain(subject, Stack(steps=None, epochs=2, samples=45), options)


def test_weights_that_stages_share(subject: StrategySubject) -> None:
    # In a V both ends are on one rank.
    options = [{"schedule": "1f1b"}, {"schedule": "zbv"}, {"schedule": "interleaved_1f1b"}]
    expect_plain(subject, Tied(max_norm=0.2), options)
    expect_plain(subject, Tied(max_value=0.02, accumulate=2), options[:1])


@pytest.mark.parametrize("copies", [1, pytest.param(2, marks=pytest.mark.long)])
def test_gradients_that_are_kept_over_a_step(subject: StrategySubject, copies: int) -> None:
    """Those of a weight that stages share were summed over them in the step before."""
    options = {"data_parallel_size": copies}
    if copies == 2:
        subject = replace(subject.at(4), data_ranks=two_copies)
    expect_plain(subject, KeepingTied(max_norm=0.2), [options])
    expect_plain(subject, KeepingSurrounded(accumulate=2, max_norm=None), [options])


def test_parameters_outside_of_the_pipeline(subject: StrategySubject) -> None:
    options = [{"schedule": "1f1b"}, {"schedule": "interleaved_zero_bubble"}]
    expect_plain(subject, Surrounded(accumulate=2), options)


def test_a_traced_module(subject: StrategySubject) -> None:
    options: list[dict[str, Any]] = [
        {"split_points": ["c"]},
        {"split_points": ["b", "c", "d"], "schedule": "zbv", "balance": "activations"},
    ]
    expect_plain(subject, Skipping(), options)


def test_language_models_with_tied_weights(subject: StrategySubject) -> None:
    traced = Logits(model="gpt2", steps=4, adaptive=True, accumulate=2, max_norm=0.5)
    expect_plain(subject, traced, [{"split_points": ["transformer.h.1"]}], 1e-5)
    expect_plain(subject, StackedLlama(steps=4, max_norm=0.5), [{"schedule": "interleaved_1f1b"}], 1e-5)


def test_a_model_constructed_without_memory(subject: StrategySubject) -> None:
    expect_same(subject.run(train_late, Stack(steps=6)), plainly(Stack(steps=6), 1), 2e-6)


def test_every_rank_returns_and_logs_what_the_last_stage_does(subject: StrategySubject) -> None:
    (first, logged), (second, also_logged) = subject.run(says)
    for ours, theirs in zip(first, second):
        assert {**ours, "loss": 0, "scores": 0, "right": 0, "noise": 0} == {
            **theirs, "loss": 0, "scores": 0, "right": 0, "noise": 0
        }  # fmt: skip
        assert (ours["rows"], ours["kind"]) == (4, "mse")
        assert ours["scores"].shape == (8, 4)
        assert ours["right"].shape == (2,)
        for name in ("loss", "scores", "right", "noise"):
            assert ours[name].dtype == theirs[name].dtype
            assert torch.equal(ours[name], theirs[name])
        # The step draws the same numbers where it computes the input and where it computes the loss.
        expected = F.mse_loss(ours["scores"], ours["noise"])
        torch.testing.assert_close(ours["loss"], expected)
    assert logged == also_logged
    assert [row["rows"] for row in logged] == [8.0] * 3
    assert logged[2]["many69"] == 71.0
    assert not torch.equal(first[0]["noise"], first[1]["noise"])


def says(subject: StrategySubject) -> Any:
    returned = Returned()
    module = Says(Stack(samples=24), 8)
    subject.trainer(max_epochs=1, callbacks=[returned]).fit(module)
    return returned.outputs, returned.logged
