"""Stages of a pipeline that other axes shard, copy or split train as in plain torch in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import LanguageModel
from listed_models import ListedLayers, plain_twice, train_twice
from mesh_subjects import composition
from moved_runs import MovedRuns
from pipelines import Stack, Surrounded, one_copy
from stacked_models import (
    SPLIT,
    SPLIT_OUTSIDE,
    Outside,
    Stacked,
    Variant,
    WholeStacked,
    fit_twice,
    gathered,
    held,
    plain_uneven,
    train_uneven,
    train_variants,
)
from stratagem_fsdp import ShardAxis
from stratagem_mesh import ComposedStrategy, compose
from stratagem_pipeline import PipelineAxis
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_close, expect_same
from stratagem_testing.strategies import STRATEGY_CHECKS
from stratagem_testing.trained import naming, plainly, train_each
from stratagem_testing.workers import RankError
from torch import nn
from torch.utils.data import DataLoader

import stratagem
from stratagem import ConfigError, RunConfig, Runtime, StratagemError
from stratagem.errors import DataError
from stratagem.resolve.run import assemble

TOLERANCE = 1e-6
MICRO_BATCHES = 2
"""As many as stages, where nothing else is said."""

FOUR = {
    "pipeline=2+shard=2": composition("pipeline=2+shard=2", 2),
    "pipeline=2+replicate=2": composition("pipeline=2+replicate=2", 2),
    "pipeline=2+tensor=2": composition("pipeline=2+tensor=2", 1, SPLIT),
    "gathered per micro-batch": composition("pipeline=2+shard=2", 2, shard={"gather_per_micro_batch": True}),
}
EIGHT = {
    "pipeline=2+shard=2+tensor=2": composition("pipeline=2+shard=2+tensor=2", 2, SPLIT),
    "pipeline=2+replicate=2+shard=2": composition("pipeline=2+replicate=2+shard=2", 4),
    "pipeline=2+replicate=2+tensor=2": composition("pipeline=2+replicate=2+tensor=2", 2, SPLIT),
    "pipeline=4+shard=2": composition("pipeline=4+shard=2", 2),
}

# Clipping always bites, so that a norm that counts something twice or not at all shows.
VARIANTS: list[Variant] = [
    ({}, Stacked(max_norm=0.1)),
    (
        {"schedule": "gpipe", "micro_batches": 4},
        Stacked(tied=True, max_norm=0.1, accumulate=2, global_batch=32),
    ),
    ({"balance": [2, 3], "activation_checkpointing": True}, Stacked(max_norm=0.1, accumulate=2)),
    ({"schedule": "interleaved_1f1b"}, Stacked(tied=True, max_norm=0.1)),
]
WHOLE: list[Variant] = [
    # Layers of several costs, parameters outside of the pipeline, and an epoch whose last batch is smaller.
    ({}, Surrounded(steps=6)),
    ({"schedule": "gpipe"}, Stack(steps=None, epochs=2, samples=44, max_value=0.02)),
]


def equals_one_process(
    subject: StrategySubject, world_size: int, variants: list[Variant], folder: Path
) -> None:
    trying = replace(subject, world_size=world_size, folder=str(folder))
    by_rank = trying.run(train_variants, variants)
    for index, (options, recipe) in enumerate(variants):
        with naming((options, recipe)):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)


@pytest.mark.parametrize("name", FOUR)
def test_two_axes_equal_one_process(name: str, tmp_path: Path) -> None:
    variants = VARIANTS if "tensor" in name else [*VARIANTS, *WHOLE]
    equals_one_process(FOUR[name], 4, variants, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", EIGHT)
def test_three_axes_equal_one_process(name: str, tmp_path: Path) -> None:
    variants = [each for each in VARIANTS if "pipeline=2" in name or not each[0]]
    equals_one_process(EIGHT[name], 8, variants, tmp_path)


@pytest.mark.parametrize(
    ("expression", "data_ranks", "world_size"),
    [
        ("pipeline=2+shard=2", 2, 4),
        ("pipeline=2+tensor=2", 1, 4),
        ("pipeline=2+context=2", 1, 4),
        pytest.param("pipeline=2+replicate=2", 2, 4, marks=pytest.mark.long),
        pytest.param("pipeline=2+shard=2+context=2", 2, 8, marks=pytest.mark.long),
        pytest.param("pipeline=2+shard=2+tensor=2", 2, 8, marks=pytest.mark.long),
    ],
)
def test_models_of_transformers(expression: str, data_ranks: int, world_size: int, tmp_path: Path) -> None:
    """As they are: the layers that they have in a list are the pipeline, and the built-in plans split them."""
    subject = composition(expression, data_ranks).at(world_size)
    subject = replace(subject, folder=str(tmp_path))
    recipes = [
        LanguageModel(model="llama", max_norm=0.1, accumulate=2),
        LanguageModel(model="gpt2", adaptive=True),
        ListedLayers(steps=10, epochs=None, global_batch=24, max_norm=0.3),
    ]
    if "tensor" in expression or "context" in expression:
        recipes = recipes[:2]  # nothing of the third is known to the plans
    by_rank = subject.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, subject.shares()), 1e-5)


@pytest.mark.parametrize(
    ("expression", "data_ranks", "world_size"),
    [
        ("pipeline=2+tensor=2", 1, 4),
        pytest.param("pipeline=2+shard=2+tensor=2", 2, 8, marks=pytest.mark.long),
    ],
)
def test_split_layers_outside_of_the_pipeline(
    expression: str, data_ranks: int, world_size: int, tmp_path: Path
) -> None:
    """They are split and not sharded: their gradients are averaged, and added up over stages."""
    subject = composition(expression, data_ranks, SPLIT_OUTSIDE)
    equals_one_process(subject, world_size, [({}, Outside(max_norm=0.1, accumulate=2))], tmp_path)


def weighs_as_one_process(subject: StrategySubject, world_size: int, folder: Path) -> None:
    trying = replace(subject, world_size=world_size, folder=str(folder))
    expected = plain_uneven(trying.shares(), 12, 2)
    for weights in trying.run(train_uneven, 12, 2):
        expect_close(weights, expected, TOLERANCE, "weights")


@pytest.mark.parametrize("name", FOUR)
def test_weighted_losses_of_unequal_batches(name: str, tmp_path: Path) -> None:
    """One data rank meets a new shape, and makes other stages for it, while the other goes on."""
    weighs_as_one_process(FOUR[name], 4, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", EIGHT)
def test_weighted_losses_on_three_axes(name: str, tmp_path: Path) -> None:
    weighs_as_one_process(EIGHT[name], 8, tmp_path)


def test_a_rank_holds_its_shards_of_its_stage(tmp_path: Path) -> None:
    """Adam's moments are of the shards, too."""
    recipe = Stacked(kind="foreach")
    whole = sum(parameter.numel() for parameter in recipe.net().parameters())
    ranks = replace(FOUR["pipeline=2+shard=2"], world_size=4, folder=str(tmp_path)).run(held, recipe)
    assert [parameters for parameters, _ in ranks] == [moments for _, moments in ranks]
    # The parameter without a dimension is on both ranks of the first stage.
    assert sum(parameters for parameters, _ in ranks) == whole + 1
    first, second, third, fourth = (parameters for parameters, _ in ranks)
    assert (first, third) == (second, fourth)
    assert min(first, third) > whole / 6


def test_what_is_gathered_for_each_micro_batch(tmp_path: Path) -> None:
    """Twice per micro-batch, but in the first batch, whose shape is new."""
    recipe = Stacked(steps=3)
    once, each = (
        replace(FOUR[name], world_size=4, folder=str(tmp_path)).run(gathered, recipe)
        for name in ("pipeline=2+shard=2", "gathered per micro-batch")
    )
    for by_batch, by_micro_batch in zip(once, each):
        assert by_batch == by_batch[:1] * 3
        assert by_micro_batch == [by_batch[0], *[2 * MICRO_BATCHES * by_batch[0]] * 2]


def test_units_within_layers_are_gathered_once(tmp_path: Path) -> None:
    recipe, shard = Stacked(steps=3), {"auto_wrap_policy": ["Attention", "FeedForward"]}
    options = [shard, {**shard, "gather_per_micro_batch": True}]
    once, each = (
        composition("pipeline=2+shard=2", 2, shard=option).at(4).run(gathered, recipe) for option in options
    )
    for by_batch, by_micro_batch in zip(once, each):
        assert by_batch[0] < by_micro_batch[1] < 2 * MICRO_BATCHES * by_batch[0]


def test_optimizers_that_need_whole_tensors(tmp_path: Path) -> None:
    """Each is stepped by one rank of those that have its shards."""
    subject = replace(FOUR["pipeline=2+shard=2"], world_size=4, folder=str(tmp_path))
    recipes = [WholeStacked(kind="norms"), WholeStacked(kind="adafactor")]
    by_rank = subject.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, subject.shares()), 2e-6)


@pytest.mark.parametrize("name", ["pipeline=2+shard=2", "pipeline=2+replicate=2"])
def test_weighted_losses_of_windows(name: str, tmp_path: Path) -> None:
    """As the kit says: windows of four, an incomplete one, and micro-batches without a label."""
    (found,) = (each for each in STRATEGY_CHECKS if each.name == "weighted_losses")
    found.run(replace(FOUR[name], world_size=4, folder=str(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize(
    "check", ["used_on_some_ranks", "validation_changes_nothing", "checkpoint_is_what_was_evaluated"]
)
def test_what_the_kit_says_of_evaluations_and_of_unused_parameters(check: str, tmp_path: Path) -> None:
    """With whole batches: batch norms would see parts of them."""
    whole = {"pipeline": {"micro_batches": 1, "schedule": "gpipe"}}
    subject = FOUR["pipeline=2+shard=2"]
    subject = replace(subject, options={**subject.options, "axis_options": whole}, world_size=4)
    (found,) = (each for each in STRATEGY_CHECKS if each.name == check)
    found.run(replace(subject, folder=str(tmp_path)))


# Checkpoints -----------------------------------------------------------------------------------------------

HALF = 3
RESUMED = Stacked(kind="foreach", tied=True, max_norm=0.1, steps=2 * HALF, accumulate=2)
SUBJECTS = {
    "single": StrategySubject("single", world_size=1),
    "fsdp": StrategySubject("fsdp", world_size=2, options={"timeout_s": 60}),
    "pipeline": StrategySubject("pipeline", world_size=2, options={"timeout_s": 60}, data_ranks=one_copy),
    "shard=2+tensor=2": composition("shard=2+tensor=2", 2, SPLIT).at(4),
    **{name: subject.at(4) for name, subject in FOUR.items()},
    **{name: subject.at(8) for name, subject in EIGHT.items()},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> MovedRuns:
    return MovedRuns(SUBJECTS, RESUMED, HALF, tmp_path_factory)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pipeline=2+shard=2", "single"),
        ("single", "pipeline=2+shard=2"),
        ("pipeline=2+tensor=2", "pipeline=2+shard=2"),
        pytest.param("pipeline=2+shard=2", "pipeline=2+tensor=2", marks=pytest.mark.long),
        pytest.param("pipeline=2+replicate=2", "pipeline", marks=pytest.mark.long),
        pytest.param("pipeline", "pipeline=2+replicate=2", marks=pytest.mark.long),
        pytest.param("fsdp", "pipeline=2+tensor=2", marks=pytest.mark.long),
        pytest.param("pipeline=2+tensor=2", "shard=2+tensor=2", marks=pytest.mark.long),
        pytest.param("pipeline=2+shard=2+tensor=2", "single", marks=pytest.mark.long),
        pytest.param("single", "pipeline=2+shard=2+tensor=2", marks=pytest.mark.long),
        pytest.param("shard=2+tensor=2", "pipeline=2+replicate=2+shard=2", marks=pytest.mark.long),
    ],
)
def test_goes_on_elsewhere(runs: MovedRuns, before: str, after: str, tmp_path: Path) -> None:
    runs.goes_on(before, after, tmp_path)


def test_has_the_tensors_of_one_process(runs: MovedRuns) -> None:
    """Moments too, and each tied weight once."""
    runs.has_the_tensors_of("pipeline=2+shard=2", "single", among="attention.o.weight/exp_avg_sq")


def test_the_next_run_in_these_processes_goes_on(tmp_path: Path) -> None:
    """A run leaves whole layers on the ranks of their stages, which the next one gives to those of its own."""
    subject = replace(FOUR["pipeline=2+shard=2"], world_size=4, folder=str(tmp_path))
    for first, second in subject.run(fit_twice):
        expect_close(second, first, TOLERANCE, "weights")
    recipe = ListedLayers(steps=4, epochs=None)
    for weights in subject.run(train_twice, recipe):
        expect_close(weights, plain_twice(recipe, subject.shares()), TOLERANCE, "weights")


# What is refused -------------------------------------------------------------------------------------------


class NeedsAll(ShardAxis):
    """An axis that transforms whole modules alone."""

    name = "all"
    takes_parts = False


def test_axes_that_need_the_whole_module() -> None:
    with pytest.raises(
        StratagemError, match="axis 'all' can't be composed with axis 'pipeline': each rank of"
    ):
        compose(PipelineAxis(2), NeedsAll(2))


def test_two_pipelines() -> None:
    with pytest.raises(StratagemError, match="axis 'pipeline' is given twice"):
        ComposedStrategy("pipeline=2+pipeline=2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"axis_options": {"pipeline": {"schedule": "zbv"}}},
            "axis 'pipeline' with schedule='zbv' can't be composed with axis 'shard': it computes gradients",
        ),
        ({"sync_module_states": False}, "and axis 'pipeline' gives each rank a part of rank 0's"),
        ({"axis_options": {"pipeline": {"balance": [1, 2, 3]}}}, "balance"),
    ],
)
def test_settings_that_do_not_go_together(options: Any, message: str) -> None:
    strategy = ComposedStrategy("pipeline=2+shard=2", **options)
    with pytest.raises(StratagemError, match=message):
        assemble(RunConfig(strategy=strategy, accelerator="cpu", devices=4), {})


def test_features_and_precisions_that_a_pipeline_lacks() -> None:
    run = assemble(RunConfig(strategy="pipeline=2+shard=2", accelerator="cpu", devices=4), {})
    assert "manual_backward" not in run.capabilities.features
    assert "norm_clipping" in run.capabilities.features
    assert "16-true" not in run.capabilities.precisions


def step_once(runtime: Any) -> None:
    net = Stacked().net()
    runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))


class Normed(stratagem.Module):
    """Batch norms, and batches whose parts have one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Tanh())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return DataLoader(torch.randn(8, 3), 2)


def test_batch_norms_of_parts_by_the_names_of_their_classes(tmp_path: Path) -> None:
    """Shards are in classes of torch's, as FSDPBatchNorm1d, which users don't know."""
    trainer = stratagem.Trainer(
        strategy=ComposedStrategy("pipeline=2+shard=2", start_method="fork"),
        accelerator="cpu",
        devices=4,
        max_steps=1,
        enable_progress_bar=False,
        run_dir=tmp_path,
    )
    with pytest.raises(DataError) as refused:
        trainer.fit(Normed())
    assert "'net.1.running_mean', once for each of the 2 parts" in str(refused.value)
    assert "or have BatchNorm1d in evaluation mode" in str(refused.value)


def test_own_loops() -> None:
    runtime = Runtime(compose(PipelineAxis(2), ShardAxis(1), start_method="fork"), "cpu", 2)
    with pytest.raises(ConfigError, match="a pipeline runs forward and backward of a training step at once"):
        runtime.launch(step_once, quiet=True)


def test_activations_that_only_their_layout_tells_from_whole_ones(tmp_path: Path) -> None:
    """The last layer's scores stay in shards of the vocabulary."""
    plan = {**SPLIT, "net.4.head": "logits"}
    subject = composition("pipeline=2+tensor=2", 1, plan, tensor={"loss_parallel": True})
    with pytest.raises(RankError) as refused:
        replace(subject, world_size=4, folder=str(tmp_path)).run(train_each, [Stacked(steps=1)])
    assert isinstance(refused.value.error, ConfigError)
    assert "axis 'pipeline' sends plain tensors from stage to stage, and axis 'tensor'" in str(
        refused.value.error
    )


def test_the_plan_has_the_stages() -> None:
    run = assemble(RunConfig(strategy="pipeline=2+shard=2+tensor=2", accelerator="cpu", devices=8), {})
    mesh, data, first, *_ = run.strategy.describe_run(run)
    assert mesh == "mesh: pipeline 2 × shard 2 × tensor 2, outermost first"
    assert data == "data: 2 parts; ranks that read the same batches: {0, 1, 4, 5} {2, 3, 6, 7}"
    assert first == (
        "pipeline: ranks {0, 4} {1, 5} {2, 6} {3, 7} send the activations between stages in forward, and their "
        "gradients in backward"
    )
