"""Under context_parallel, outputs, losses and gradients in float64 are those of one process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from long_sequences import Case, Computed, compute, of_class, plainly
from stratagem_testing import StrategySubject

TOLERANCE = 1e-12

CASES = [
    Case("heads"),
    Case("grouped"),
    Case("grouped", "padding"),
    Case("grouped", "packed"),
    Case("grouped", "nothing"),
    Case("grouped", "padding alone"),
    Case("heads", "biases"),
    Case("one for all"),
    Case("recomputed", "packed"),
    Case("grouped", sharded_loss=True),
]
KNOWN = [
    Case("encoder"),
    Case("encoder", "padding"),
    Case("encoder, tokens first", "padding"),
    *(Case(net, mask) for net in ("gpt2", "llama") for mask in ("causal", "padding", "packed")),
]


def subject(world_size: int, contexts: int, **options: Any) -> StrategySubject:
    return StrategySubject(
        "context_parallel",
        options={"timeout_s": 60, "context_parallel_size": contexts, **options},
        data_ranks=partial(groups, contexts),
        world_size=world_size,
    )


def groups(contexts: int, world_size: int) -> int:
    return world_size // contexts


plain = cache(plainly)


@pytest.mark.parametrize(
    ("world_size", "contexts", "attention"),
    [(2, 2, "ulysses"), (2, 2, "ring"), (4, 4, "ulysses"), (4, 4, "ring"), (4, 2, "ulysses")],
)
def test_own_blocks(world_size: int, contexts: int, attention: str, tmp_path: Path) -> None:
    trying = subject(world_size, contexts, attention=attention, parallelize=of_class)
    cases = [*CASES, *([Case("learned biases")] if attention == "ulysses" else [])]
    expect_equal(cases, replace(trying, folder=str(tmp_path)).run(compute, cases))


@pytest.mark.parametrize("attention", ["ulysses", "ring"])
def test_blocks_that_are_known(attention: str, tmp_path: Path) -> None:
    trying = subject(4, 4, attention=attention)
    expect_equal(KNOWN, replace(trying, folder=str(tmp_path)).run(compute, KNOWN))


def expect_equal(cases: list[Case], by_rank: list[list[Computed]]) -> None:
    for index, case in enumerate(cases):
        ranks, alone = [each[index] for each in by_rank], plain(case)
        parts = alone.output.chunk(len(alone.output) // len(ranks[0].output))
        far = {"the loss": float(torch.stack([rank.loss for rank in ranks]).mean() - alone.loss)}
        for rank in ranks:
            far["outputs"] = min(float((rank.output - part).abs().max()) for part in parts)
            assert rank.gradients.keys() == alone.gradients.keys()
            for name, gradient in rank.gradients.items():
                far[name] = float((gradient - alone.gradients[name]).abs().max())
            assert {name: by for name, by in far.items() if not abs(by) <= TOLERANCE} == {}, case
