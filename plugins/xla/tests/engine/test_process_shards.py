"""xla_fsdp with a process per device, in the one that PJRT's CPU has: torch_xla's XlaFullyShardedDataParallel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_testing import StrategyContract, StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.same import expect_same
from stratagem_testing.trained import naming, plainly
from stratagem_xla.conformance import FSDP, FSDP_PROCESS
from xla_host_fsdp import HostFSDP
from xla_process_tasks import (
    TOKENS,
    Half,
    Shaped,
    Tokens,
    all_refused,
    cut_as_torch_xla_does,
    look,
    own_loops,
    refused,
    train_all,
    warnings_of,
)
from xla_step_changes import FOLLOWED, REFUSED, Changing
from xla_tasks import go_on, launch_processes, refusal, save

TOLERANCE = 1e-5
ONE = FSDP_PROCESS.at(1)

pytestmark = pytest.mark.timeout(360)


def with_options(**options: Any) -> StrategySubject:
    return replace(ONE, options={**ONE.options, **options})


class TestConformance(StrategyContract):
    world_sizes = (1,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return FSDP_PROCESS


class TestTwoProcesses(StrategyContract):
    """What several processes could break; gloo stands for the links that PJRT's CPU hasn't."""

    world_sizes = (2,)
    checks = tuple(
        check
        for check in StrategyContract.checks
        if check.name
        in (
            "same_start",
            "tied_weights",
            "unused_parameters",
            "frozen_within_a_step",
            "changes_in_place",
            "target_network",
            "norm_clipping",
            "evaluation_once",
            "save_and_load",
            "other_world_size",
            "own_backwards",
            "own_gradients",
            "own_tensors",
        )
    )

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return replace(FSDP_PROCESS, strategy=HostFSDP, options={})


RECIPES = {
    "momentum": Tokens(),
    "adam": Tokens(adaptive=True),
    "accumulated": Tokens(accumulate=2),
    "clipped by norm": Tokens(max_norm=0.5),
    "clipped by value": Tokens(max_value=0.01, accumulate=2),
}


def test_twenty_steps_equal_plain_torch() -> None:
    for trained, (name, recipe) in zip(ONE.run(train_all, list(RECIPES.values()))[0], RECIPES.items()):
        assert len(trained.losses) == 20 * recipe.accumulate, name
        expect_same([trained], plainly(recipe, 1), TOLERANCE)


def test_what_a_step_does_to_parameters_is_kept() -> None:
    recipes = [Changing(kind=kind) for kind in FOLLOWED]
    for trained, recipe in zip(ONE.run(train_all, recipes)[0], recipes):
        with naming(recipe.kind):
            expect_same([trained], plainly(recipe, 1), TOLERANCE)


def test_what_a_step_does_that_is_not_kept_is_refused() -> None:
    sentences = ONE.run(all_refused, [Changing(kind=kind) for kind in REFUSED])[0]
    assert [words for words, sentence in zip(REFUSED.values(), sentences) if words not in sentence] == []


def test_gpt2_equals_plain_torch() -> None:
    pytest.importorskip("transformers")
    from language_models import LanguageModel, train_models

    recipe = LanguageModel(model="gpt2", steps=6)
    expect_same(ONE.run(train_models, [recipe])[0], plainly(recipe, 1), TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [
        {"reshard_after_forward": False, "sync_on_finalization": True},
        {"disable_reshard_on_root": False, "optimization_barrier_in_backward": False},
        {"auto_wrap_policy": ["Linear", "LayerNorm"], "pin_layout_in_collective_ops": False},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_of_torch_xla_change_no_numbers(options: dict[str, Any]) -> None:
    (trained,) = with_options(**options).run(train_all, [RECIPES["clipped by norm"]])[0]
    expect_same([trained], plainly(RECIPES["clipped by norm"], 1), TOLERANCE)


def test_rows_may_be_cut_instead() -> None:
    (trained,) = with_options(shard_param_on_dim_0=True).run(train_all, [Recipe()])[0]
    expect_same([trained], plainly(Recipe(), 1), TOLERANCE)


def test_it_may_compute_in_bfloat16() -> None:
    (trained,) = with_options(compute_dtype="bfloat16").run(train_all, [Tokens()])[0]
    plain = plainly(Tokens(), 1)
    assert trained.losses != pytest.approx(plain.losses, abs=1e-4)
    assert trained.losses[:5] == pytest.approx(plain.losses[:5], abs=5e-2)


def test_the_module_shows_shards_and_is_whole_again() -> None:
    seen = ONE.run(look, Tokens())[0]
    net = Tokens().net()
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    # Filled up to a multiple of 128.
    assert seen.during == {
        name: (-(-torch.Size(shape).numel() // 128) * 128,) for name, shape in shapes.items()
    }
    assert list(seen.during) == list(shapes)
    assert all(seen.is_stepped)
    assert seen.wrappers == 3
    assert seen.after == shapes
    assert seen.tied
    assert seen.left == []
    net.load_state_dict(seen.trained)
    net.calls = 2
    torch.testing.assert_close(seen.output, net.eval()(torch.arange(TOKENS)), atol=TOLERANCE, rtol=0)


def test_a_own_loop_equals_plain_torch() -> None:
    together, alone = ONE.run(own_loops)[0]
    assert len(together) == 24
    assert together == pytest.approx(alone, abs=TOLERANCE)


def test_shards_of_several_processes_are_those_of_torch_xla() -> None:
    apart = ONE.run(cut_as_torch_xla_does)[0]
    assert len(apart) == 2 * 3 * 4
    assert [name for name, difference in apart if difference != 0] == []


SUBJECTS = {
    "process": ONE,
    "single": StrategySubject("single").at(1),
    "ddp2": StrategySubject("ddp", options={"timeout_s": 60}).at(2),
    "xla_fsdp2": FSDP.at(2),
}
SAVED = 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("process", "single"),
        ("single", "process"),
        ("process", "ddp2"),
        ("ddp2", "process"),
        ("process", "xla_fsdp2"),
        ("xla_fsdp2", "process"),
    ],
)
def test_checkpoints_go_between(tmp_path: Path, before: str, after: str) -> None:
    recipe = Recipe(steps=11) if "2" in before + after else Tokens(steps=11, adaptive=True)
    path = str(tmp_path / "checkpoint")
    replace(SUBJECTS[before], folder=str(tmp_path)).run(save, recipe, SAVED, path)
    ranks = replace(SUBJECTS[after], folder=str(tmp_path)).run(go_on, recipe, path)
    whole = plainly(recipe, SUBJECTS[after].shares())
    for step in range(5):
        loss = sum(trained.losses[step] for trained in ranks) / len(ranks)
        assert loss == pytest.approx(whole.losses[SAVED + step], abs=TOLERANCE)
    assert ranks[0].weights.keys() == whole.weights.keys()
    for name, value in ranks[0].weights.items():
        assert float((value - whole.weights[name]).abs().max()) < 10 * TOLERANCE, name


def test_torch_xla_launches_it() -> None:
    trained, world_size = ONE.alone(launch_processes, timeout_s=240)
    assert world_size == "1"
    expect_same([trained], plainly(Recipe(), 1), TOLERANCE)


def test_several_processes_are_refused_on_a_cpu() -> None:
    message = FSDP_PROCESS.at(2).alone(refusal)
    assert message.startswith("CombinationError: ")
    assert "PJRT's CPU only has one" in message


@pytest.mark.parametrize(
    ("options", "recipe", "message"),
    [
        (
            {"auto_wrap_policy": "Conv2d"},
            Tokens(),
            "auto_wrap_policy names 'Conv2d', and this model has none",
        ),
        (
            {"auto_wrap_policy": ["ModuleList"]},
            Tokens(),
            "auto_wrap_policy names ModuleList, which has no forward",
        ),
        ({}, Shaped(), "Adafactor on shards, for it needs whole tensors"),
        ({}, Half(), "parameter 'net.spare.weight' is torch.bfloat16"),
        ({"compute_dtype": "bfloat16"}, Tokens(precision="bf16-mixed"), "both say in what to compute"),
    ],
)
def test_refusals(options: dict[str, Any], recipe: Recipe, message: str) -> None:
    assert message in with_options(**options).run(refused, recipe)[0]


def test_options_without_use_under_spmd_are_reported_once() -> None:
    subject = replace(FSDP.at(1), options={"reshard_after_forward": False})
    warned = [each for each in subject.run(warnings_of, Recipe(steps=1))[0] if "no use" in each]
    assert warned == ["xla_fsdp has no use for reshard_after_forward under SPMD"]
