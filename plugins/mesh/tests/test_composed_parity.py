"""A transformer under a composition trains as in plain torch in one process, over 10 steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_subjects import composition
from stratagem_testing import StrategySubject
from stratagem_testing.record import gather_whole
from stratagem_testing.same import expect_close, expect_same
from stratagem_testing.trained import naming, plainly, train_each
from tensor_models import TENSOR, VOCABULARY, Sentences, below_net
from torch import Tensor, nn
from torch.nn import functional as F

TOLERANCE = 1e-6
TIED = below_net({**TENSOR, "tokens": "rowwise", "head": "colwise_gathered"})

SEQUENCES = {"parallelize": {"net.blocks.*": "block"}}

FOUR = {
    "shard=2+tensor=2": composition("shard=2+tensor=2", 2, TIED),
    "replicate=2+tensor=2": composition("replicate=2+tensor=2", 2, TIED),
    "replicate=2+shard=2": composition("replicate=2+shard=2", 4),
    "shard=2+context=2": composition("shard=2+context=2", 2, context=SEQUENCES),
    "replicate=2+context=2": composition(
        "replicate=2+context=2", 2, context={**SEQUENCES, "attention": "ring"}
    ),
    "context=2+tensor=2": composition("context=2+tensor=2", 1, TIED, context=SEQUENCES),
}
EIGHT = {
    "replicate=2+shard=2+tensor=2": composition("replicate=2+shard=2+tensor=2", 4, TIED),
    "replicate=2+shard=2+context=2": composition("replicate=2+shard=2+context=2", 4, context=SEQUENCES),
    "replicate=2+context=2+tensor=2": composition(
        "replicate=2+context=2+tensor=2", 2, TIED, context=SEQUENCES
    ),
    "shard=2+context=2+tensor=2": composition("shard=2+context=2+tensor=2", 2, TIED, context=SEQUENCES),
}


@dataclass(frozen=True)
class Tied(Sentences):
    """The head has the weight of the embedding; a parameter without dimensions scales its outputs."""

    steps: int | None = 10

    def net(self) -> nn.Module:
        net: Any = super().net()
        net.head.weight = net.tokens.weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            nn.init.normal_(net.tokens.weight, std=0.3)
        net.register_parameter("scale", nn.Parameter(torch.tensor(1.5)))
        net.register_forward_hook(lambda module, args, output: output * module.scale)
        return net


# Clipping always bites, so that a norm that counts something twice or not at all shows.
RECIPES: Sequence[Sentences] = (
    Sentences(max_norm=0.1, steps=10),
    Tied(max_norm=0.1, accumulate=2),
)


def equals_one_process(subject: StrategySubject, world_size: int, folder: Path) -> None:
    trying = replace(subject, world_size=world_size, folder=str(folder))
    by_rank = trying.run(train_each, RECIPES)
    for index, recipe in enumerate(RECIPES):
        with naming(recipe):
            expect_same([each[index] for each in by_rank], plainly(recipe, trying.shares()), TOLERANCE)


@pytest.mark.parametrize("name", FOUR)
def test_two_axes_equal_one_process(name: str, tmp_path: Path) -> None:
    equals_one_process(FOUR[name], 4, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", EIGHT)
def test_three_axes_equal_one_process(name: str, tmp_path: Path) -> None:
    equals_one_process(EIGHT[name], 8, tmp_path)


ENCODERS = {
    "context=2+tensor=2": composition("context=2+tensor=2", 1, None, context={}),
    "shard=2+context=2": composition("shard=2+context=2", 2, context={}),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_built_in_plans_cut_sequences_and_layers(name: str, tmp_path: Path) -> None:
    trying = replace(ENCODERS[name], world_size=4, folder=str(tmp_path))
    recipe = Sentences(model="encoder-last", max_norm=0.1, steps=4)
    expect_same(
        [each for (each,) in trying.run(train_each, [recipe])], plainly(recipe, trying.shares()), TOLERANCE
    )


# Weighted losses in a loop without the Trainer; batches and weights differ between data ranks ----------


@dataclass(frozen=True)
class Counted:
    """Sentences of which some tokens count: the first data rank has one sentence, the next two, and so on."""

    steps: int = 10
    accumulate: int = 2
    max_norm: float = 0.1

    def net(self) -> nn.Module:
        return Sentences().net()

    def batch(self, step: int, micro: int, part: int) -> tuple[Tensor, Tensor]:
        """Return tokens, (samples, length), and which of them count."""
        generator = torch.Generator().manual_seed(1000 * step + 100 * micro + part)
        tokens = torch.randint(VOCABULARY, (part + 1, 8), generator=generator)
        return tokens, torch.rand(tokens.shape, generator=generator) < 0.9 / (part + 1)

    @staticmethod
    def loss(net: nn.Module, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sum of losses, and how many tokens count."""
        targets = (tokens * 5 + 1) % VOCABULARY
        losses = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * counts.flatten()).sum(), counts.sum()


def train_counted(subject: StrategySubject, task: Counted) -> dict[str, Tensor]:
    """Train by your own training loop, and return whole weights. Run by every rank."""
    weights: dict[str, Tensor] = subject.runtime(seed=7).launch(
        _train_counted, task, f"{subject.folder}/weights", quiet=True
    )
    return weights


def _train_counted(runtime: Any, task: Counted, path: str) -> dict[str, Tensor]:
    net = task.net()
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    part = runtime.collectives.data.rank
    for step in range(task.steps):
        optimizer.zero_grad()
        for micro in range(task.accumulate):
            with runtime.no_backward_sync(net, enabled=micro + 1 < task.accumulate):
                loss, weight = task.loss(net, *task.batch(step, micro, part))
                runtime.backward(loss, weight=weight)
        runtime.clip(optimizer, max_norm=task.max_norm)
        optimizer.step()
    (prepared,) = (each for each, _ in runtime.session.set_up_modules())
    return gather_whole(runtime.session.checkpointer, prepared.model_tensors(), path, "model/")


def plain_counted(task: Counted, parts: int) -> dict[str, Tensor]:
    """The same in plain torch: gradients of Σ loss / Σ weight over all parts and micro-batches of a step."""
    net = task.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(task.steps):
        optimizer.zero_grad()
        batches = [task.batch(step, micro, part) for micro in range(task.accumulate) for part in range(parts)]
        losses, weights = zip(*(task.loss(net, *batch) for batch in batches))
        (sum(losses) / sum(weights)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), task.max_norm)
        optimizer.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def weighs_as_one_process(subject: StrategySubject, world_size: int, folder: Path) -> None:
    task, trying = Counted(), replace(subject, world_size=world_size, folder=str(folder))
    expected = plain_counted(task, trying.shares())
    for weights in trying.run(train_counted, task):
        expect_close(weights, expected, TOLERANCE, "weights")


@pytest.mark.parametrize("name", list(FOUR))
def test_weighted_losses_of_unequal_batches(name: str, tmp_path: Path) -> None:
    weighs_as_one_process(own_loop(FOUR[name]), 4, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", list(EIGHT))
def test_weighted_losses_on_three_axes(name: str, tmp_path: Path) -> None:
    weighs_as_one_process(own_loop(EIGHT[name]), 8, tmp_path)


def own_loop(subject: StrategySubject) -> StrategySubject:
    """Return a subject whose plan is for the net itself, which no module has around it."""
    axis_options = dict(subject.options["axis_options"])
    if "tensor" in axis_options:
        axis_options["tensor"] = {"parallelize": TENSOR}
    if "context" in axis_options:
        axis_options["context"] = {**axis_options["context"], "parallelize": {"blocks.*": "block"}}
    return replace(subject, options={**subject.options, "axis_options": axis_options})
