"""What each rank has, how it got it, and that ranks agree on what they all have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import LanguageModel, train_models
from stratagem_model_parallel import BlockPlan
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.subject import TOLERANCES
from stratagem_testing.trained import naming, plainly, train_each
from tensor_models import (
    BLOCK,
    BLOCK_IN_SEQUENCE,
    LOSS,
    SEQUENCE,
    TENSOR,
    LateModule,
    OwnPlan,
    Sentences,
    below_net,
    clipped_norms,
    dropped,
    train_class,
    train_logging,
    train_to_parts,
)

TOLERANCE = 5e-6


def copies(tensors: int, world_size: int) -> int:
    return world_size // tensors


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def subject(world_size: int, tensors: int, **options: Any) -> StrategySubject:
        return StrategySubject(
            "model_parallel",
            options={"timeout_s": 60, "tensor_parallel_size": tensors, **options},
            data_ranks=partial(copies, tensors),
            world_size=world_size,
            folder=str(tmp_path),
        )

    return subject


@pytest.mark.parametrize(
    ("world_size", "plan"), [(2, TENSOR), (2, SEQUENCE), pytest.param(4, SEQUENCE, marks=pytest.mark.long)]
)
def test_what_ranks_share_stays_equal_to_the_last_bit(make: Any, world_size: int, plan: Any) -> None:
    ranks = make(world_size, 2, parallelize=below_net(plan)).run(train_to_parts, Sentences(kind="foreach"))
    for even, odd in zip(ranks[::2], ranks[1::2]):
        shared = [name for name in even if not any(part in name for part in ("attention", "feed", "head"))]
        assert "norm.weight" in shared
        for name in shared:
            assert torch.equal(even[name][1], odd[name][1]), name


def test_a_rank_has_its_part_of_what_the_plan_names(make: Any) -> None:
    ranks = make(4, 2, parallelize=below_net(TENSOR)).run(train_to_parts, Sentences(steps=1))
    for parts in ranks:
        shapes = {name: tuple(part.shape) for name, (_, part) in parts.items()}
        # Half for the tensor dimension, and half of that for the data dimension.
        assert shapes["blocks.0.feed.up.weight"] == (16, 16)
        assert shapes["blocks.0.feed.down.weight"] == (8, 32)
        assert shapes["blocks.1.attention.q.bias"] == (4,)
        assert shapes["blocks.1.norm1.weight"] == (8,)


@pytest.mark.parametrize("module", [OwnPlan, LateModule])
def test_by_the_modules_own_method_and_from_meta(make: Any, module: Any) -> None:
    plan = None if module is OwnPlan else below_net(TENSOR)
    subject = make(4, 2, parallelize=plan)
    recipe = Sentences(max_norm=0.1, steps=6)
    expect_same(subject.run(train_class, recipe, module), plainly(recipe, 2), TOLERANCE)


@pytest.mark.parametrize("sequence", [False, True])
def test_by_a_plan_for_a_kind_of_block(make: Any, sequence: bool) -> None:
    plan = BlockPlan("Block", BLOCK, BLOCK_IN_SEQUENCE)
    recipe = Sentences(max_norm=0.1, steps=6)
    subject = make(2, 2, plans=[plan], sequence_parallel=sequence)
    ranks = [trained[0] for trained in subject.run(train_each, [recipe])]
    expect_same(ranks, plainly(recipe, 1), TOLERANCE)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(make: Any, precision: str) -> None:
    recipe = Sentences(max_norm=0.5, steps=6, precision=precision)
    ranks = [trained[0] for trained in make(4, 2, parallelize=below_net(TENSOR)).run(train_each, [recipe])]
    expect_same(ranks, plainly(recipe, 2), TOLERANCES[precision])


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        pytest.param(4, {"sequence_parallel": True}, marks=pytest.mark.long),
        (2, {"loss_parallel": True}),
        pytest.param(
            4,
            {"loss_parallel": True, "sequence_parallel": True, "activation_checkpointing_policy": None},
            marks=pytest.mark.long,
        ),
    ],
)
def test_transformers_models(make: Any, world_size: int, options: Any) -> None:
    recipes = [LanguageModel(model=model, max_norm=0.5, steps=5) for model in ("gpt2", "llama")]
    subject = make(world_size, 2, **options)
    by_rank = subject.run(train_models, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe.model):
            ranks = [trained[index] for trained in by_rank]
            expect_same(ranks, plainly(recipe, subject.shares()), 1e-5)


@pytest.mark.parametrize(
    ("world_size", "tensors", "plan"),
    [(2, 2, TENSOR), (4, 2, SEQUENCE), pytest.param(4, 2, LOSS, marks=pytest.mark.long)],
)
def test_clipping_tells_the_norm_of_one_process(make: Any, world_size: int, tensors: int, plan: Any) -> None:
    subject = make(world_size, tensors, parallelize=plan)
    alone = clipped_norms(StrategySubject("single", world_size=1), Sentences())
    for norms in subject.run(clipped_norms, Sentences()):
        for ours, theirs in zip(norms, alone):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_logs_and_returns_what_is_whole(make: Any) -> None:
    recipe = Sentences(steps=3)
    ranks = make(2, 2, parallelize=below_net(LOSS), loss_parallel=True).run(train_logging, recipe)
    expect_same(ranks, plainly(recipe, 1), TOLERANCE)


def test_dropout_between_shards_draws_apart_and_leaves_ranks_alike(make: Any) -> None:
    ranks = make(2, 2, parallelize={"0": "local_dropout"}).run(dropped)
    (mask, again, following), (other, other_again, other_following) = ranks
    assert not torch.equal(mask, other)
    assert torch.equal(mask, again)
    assert torch.equal(other, other_again)
    assert following == other_following


def test_replaces_nothing_where_there_is_nothing_to_split(make: Any) -> None:
    parts = replace(make(1, 1), world_size=1).run(train_to_parts, Sentences(steps=2))[0]
    assert {layout for layout, _ in parts.values()} == {"whole"}
