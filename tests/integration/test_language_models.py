"""Models of Hugging Face's transformers train under every strategy as in plain PyTorch in one process.

Random weights, made from configurations: nothing is downloaded. A pipeline has no line here, since it needs the
loss in the step and Llama as a stack of layers: plugins/pipeline/tests/test_parity.py trains both models so.
Those of the engines are in plugins/deepspeed/tests and plugins/xla/tests.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from language_models import (
    MODELS,
    LanguageModel,
    LateModule,
    go_on,
    one_copy,
    save_on_the_way,
    train_models,
)
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import naming, plainly

pytestmark = pytest.mark.long

TOLERANCE = 1e-5
"""Losses are about 4.6, of which single precision knows 5e-7; rounding adds up over steps."""

HALF = 5

SUBJECTS = [
    StrategySubject("single", world_size=1),
    StrategySubject("ddp", world_size=2),
    StrategySubject("ddp_sharded", world_size=2),
    StrategySubject("ddp_fully_sharded", world_size=2),
    StrategySubject("fsdp", world_size=2),
    StrategySubject("fsdp", world_size=2, options={"sharding_strategy": "SHARD_GRAD_OP"}),
    StrategySubject("model_parallel", world_size=2, data_ranks=one_copy),
    StrategySubject("model_parallel", world_size=2, data_ranks=one_copy, options={"sequence_parallel": True}),
    StrategySubject("context_parallel", world_size=2, data_ranks=one_copy),
    StrategySubject("dp", world_size=2),
    StrategySubject("ddp2", world_size=2),
]


def name_of(subject: StrategySubject) -> str:
    return "-".join([subject.name, *map(str, subject.options.values())])


@pytest.fixture(params=SUBJECTS, ids=name_of)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> StrategySubject:
    return replace(request.param, folder=str(tmp_path))


def test_losses_and_weights_equal_plain_torch(subject: StrategySubject) -> None:
    recipes = [LanguageModel(model=model) for model in MODELS]
    by_rank = subject.run(train_models, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe.model):
            ranks = [trained[index] for trained in by_rank]
            expect_same(ranks, plainly(recipe, subject.shares()), TOLERANCE)


@pytest.mark.parametrize("model", MODELS)
def test_goes_on_from_its_checkpoint(subject: StrategySubject, model: str) -> None:
    # AdamW has states of its own, and clipping must count what is shared once.
    recipe = LanguageModel(model=model, adaptive=True, accumulate=2, max_norm=0.5)
    path = f"{subject.folder}/checkpoint"
    subject.run(save_on_the_way, recipe, HALF, path)
    plain = plainly(recipe, subject.shares())
    # A rank begins again, with nothing but what is in the checkpoint.
    ranks = subject.run(go_on, recipe, path)
    for trained in ranks:
        assert len(trained.losses) == 2 * (10 - HALF)
        trained.losses[:0] = plain.losses[: 2 * HALF]
        trained.rates = plain.rates  # constant
    expect_same(ranks, plain, TOLERANCE)


@pytest.mark.parametrize(
    ("saved", "loaded"), [("fsdp", "single"), ("ddp_fully_sharded", "fsdp"), ("ddp", "dp")]
)
def test_goes_on_under_another_strategy(tmp_path: Path, saved: str, loaded: str) -> None:
    recipe = LanguageModel(model="gpt2", adaptive=True)
    by_name = {each.name: replace(each, folder=str(tmp_path)) for each in reversed(SUBJECTS)}
    path = str(tmp_path / "checkpoint")
    by_name[saved].run(save_on_the_way, recipe, HALF, path)
    ranks = by_name[loaded].run(go_on, recipe, path)
    plain = plainly(recipe, by_name[loaded].shares())
    for trained in ranks:
        trained.losses[:0] = plain.losses[:HALF]
        trained.rates = plain.rates
    expect_same(ranks, plain, TOLERANCE)


def test_models_constructed_without_memory_begin_the_same(tmp_path: Path) -> None:
    subject = StrategySubject("fsdp", world_size=2, folder=str(tmp_path))
    recipes = [LanguageModel(model=model) for model in MODELS]
    by_rank = subject.run(train_models, recipes, LateModule)
    for index, recipe in enumerate(recipes):
        with naming(recipe.model):
            expect_same([trained[index] for trained in by_rank], plainly(recipe, 2), TOLERANCE)
