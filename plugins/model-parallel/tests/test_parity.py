"""A split transformer trains as in plain torch in one process: loss, weights and outputs over 20 steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import naming, plainly, train_each
from tensor_models import LOSS, SEQUENCE, TENSOR, Sentences, below_net, in_place

pytestmark = pytest.mark.long

TOLERANCE = 5e-6


def copies(tensors: int, world_size: int) -> int:
    return world_size // tensors


def subject(world_size: int, tensors: int, **options: Any) -> StrategySubject:
    if isinstance(options.get("parallelize"), dict):
        options["parallelize"] = below_net(options["parallelize"])
    return StrategySubject(
        "model_parallel",
        options={"timeout_s": 60, "tensor_parallel_size": tensors, **options},
        data_ranks=partial(copies, tensors),
        world_size=world_size,
    )


SUBJECTS = {
    "tensor 2": subject(2, 2, parallelize=TENSOR),
    "tensor 4": subject(4, 4, parallelize=TENSOR),
    "sequence 2": subject(2, 2, parallelize=SEQUENCE),
    "tensor 2 × data 2": subject(4, 2, parallelize=TENSOR),
    "sequence 2 × data 2, recomputed": subject(
        4, 2, parallelize=SEQUENCE, activation_checkpointing_policy=["Block"]
    ),
    "data 2": subject(2, 1, parallelize=TENSOR),
    "loss 2": subject(2, 2, parallelize=LOSS, loss_parallel=True),
    "loss 2 × data 2": subject(4, 2, parallelize=LOSS, loss_parallel=True),
    "by torch's function": subject(2, 2, parallelize=in_place),
}

# Clipping always bites, so that a norm that counts something twice or not at all shows.
RECIPES = (
    Sentences(max_norm=0.1),
    Sentences(kind="foreach", accumulate=2, max_norm=0.1, steps=10),
    Sentences(kind="fused", max_value=0.01, steps=10),
)


@pytest.mark.parametrize("name", SUBJECTS)
def test_equals_plain_torch(name: str, tmp_path: Path) -> None:
    trying = replace(SUBJECTS[name], folder=str(tmp_path))
    by_rank = trying.run(train_each, RECIPES)
    for index, recipe in enumerate(RECIPES):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)


@pytest.mark.parametrize(
    ("world_size", "tensors", "sequence"), [(2, 2, False), (2, 2, True), (4, 2, True), (4, 4, False)]
)
def test_torchs_encoder_layers_by_the_built_in_plan(
    world_size: int, tensors: int, sequence: bool, tmp_path: Path
) -> None:
    trying = replace(subject(world_size, tensors, sequence_parallel=sequence), folder=str(tmp_path))
    recipes = [Sentences(model=model, max_norm=0.5, steps=10) for model in ("encoder", "encoder-last")]
    by_rank = trying.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)
