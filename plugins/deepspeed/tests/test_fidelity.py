"""What a training step may do besides a plain loss: plain PyTorch's numbers, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fidelity_cases import (
    CASES,
    GATHERED,
    LOST,
    REFUSED,
    USED_OUTSIDE,
    fit_validate_and_fit,
    train,
    train_one,
    train_plainly,
    train_twice_plainly,
)
from stratagem_deepspeed.conformance import SUBJECT
from stratagem_testing import StrategySubject
from stratagem_testing.workers import RankError

pytestmark = pytest.mark.timeout(600)

EVERYWHERE = [name for name in CASES if not name.startswith(("NoneOnOne", "Experts"))]
"""Cases in which ranks take the same way through the module: stage 3 gathers parameters on the way."""


def subject(tmp_path: Path, **options: Any) -> StrategySubject:
    chosen = {**SUBJECT.options, **options}
    return replace(SUBJECT, options=chosen, world_size=2, folder=str(tmp_path))


def expect_equal(came: dict[str, Any], tolerance: float = 2e-6) -> None:
    wrong = []
    for name, weights in came.items():
        expected = train_plainly(name)
        if isinstance(weights, str):
            wrong.append(f"{name}: {weights}")
            continue
        assert weights.keys() == expected.keys()
        off = max(float((weights[key] - value).abs().max()) for key, value in expected.items())
        if not off <= tolerance:
            wrong.append(f"{name}: off by {off:.2e}")
    assert not wrong, wrong


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_plain_pytorchs_numbers_where_parameters_are_whole(stage: int, tmp_path: Path) -> None:
    for came in subject(tmp_path, stage=stage).run(train, list(CASES), timeout_s=300):
        expect_equal(came)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_left_alone_in_16_bits(stage: int, tmp_path: Path) -> None:
    clamped = "ClampedGathered" if stage == 3 else "Clamped"
    names = ["Unused", "UnusedAdam", "NoneOnAll", clamped, "FrozenGroup"]
    for came in subject(tmp_path, stage=stage).run(train, names, False, "bf16-mixed", timeout_s=300):
        # Steps and what is left alone differ by more than rounding.
        expect_equal(came, 2e-2)
        plain, spare = train_plainly("UnusedAdam")["spare.weight"], came["UnusedAdam"]["spare.weight"]
        assert torch.equal(spare, plain)


SAID = {
    "Unfrozen": "parameter 'net.2.bias' required no gradient when training began and requires one now",
    "UnfrozenInside": "parameter 'net.2.bias' required no gradient when training began",
    "FrozenForAWhileAdam": "had no gradient in some of the steps before this one, and deepspeed counts Adam's steps",
    "Doubles": "parameter 'net.2.weight' is float64, and deepspeed under precision='32-true' steps",
    "AddedGroup": "add_param_group gave SGD the parameter 'net.2.weight' after training had begun",
    "Dimensionless": "parameter 'net.scale' has no dimension, and deepspeed sends parameters along one",
    "HookedLate": "a post-accumulate hook was registered on parameter 'net.0.weight' after",
}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_refused_at_the_moment(stage: int, tmp_path: Path) -> None:
    for came in subject(tmp_path, stage=stage).run(train, list(REFUSED), timeout_s=300):
        for name, words in SAID.items():
            assert isinstance(came[name], str), f"{name} was trained"
            assert words in came[name]


def test_stage_0_steps_the_very_parameters(tmp_path: Path) -> None:
    right = ["Unfrozen", "UnfrozenInside", "FrozenForAWhileAdam", "HookedLate"]
    refused = ["Doubles", "AddedGroup", "Dimensionless"]
    for came in subject(tmp_path, stage=0).run(train, [*right, *refused], timeout_s=300):
        for name in refused:
            assert SAID[name] in came.pop(name)
        expect_equal(came)


def test_stage_3_ends_where_ranks_go_other_ways(tmp_path: Path) -> None:
    own = subject(tmp_path, stage=3)
    with pytest.raises(
        RankError, match="the order in which layers were called isn't on rank 1 what it is on rank 0"
    ):
        own.run(train_one, "Experts")
    with pytest.raises(RankError, match="training_step returned None on rank 0 and not on all ranks"):
        own.run(train_one, "NoneOnOne", timeout_s=100)


@pytest.mark.parametrize("deferred", [False, True])
def test_plain_pytorchs_numbers_where_parameters_are_partitioned(deferred: bool, tmp_path: Path) -> None:
    names = [name for name in EVERYWHERE if name not in USED_OUTSIDE]
    for came in subject(tmp_path, stage=3).run(train, [*names, *GATHERED], deferred, timeout_s=300):
        expect_equal(came)


def test_stage_3_refuses_parameters_outside_of_their_layers_forward(tmp_path: Path) -> None:
    for came in subject(tmp_path, stage=3).run(train, [*USED_OUTSIDE, *LOST], timeout_s=300):
        for name, said in came.items():
            assert isinstance(said, str), f"{name} was trained"
            assert (
                "was used outside of its layer's forward, where deepspeed's stage 3 has a part of it" in said
            )
            assert "deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)" in said


@pytest.mark.parametrize("stage", [2, 3])
def test_a_module_is_taken_up_again_in_the_same_processes(stage: int, tmp_path: Path) -> None:
    expected = train_twice_plainly()
    for weights, losses, marked in subject(tmp_path, stage=stage).run(fit_validate_and_fit, timeout_s=300):
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, atol=2e-6, rtol=0)
        # Ranks' batches have the same sizes, and each sees its own.
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
        assert marked == {"no_decay": True, "hooks": 1, "listed": True}
