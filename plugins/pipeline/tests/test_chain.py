"""Layers of an `nn.ModuleList`, which the user's module calls itself, train as in plain torch in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from language_models import LanguageModel
from listed_models import ListedLayers, PaddedModel, plain_twice, train_twice
from pipelines import expect_plain, train_late, train_under, two_copies, two_stages
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_close, expect_same
from stratagem_testing.trained import plainly
from stratagem_testing.workers import RankError


@pytest.fixture
def subject(tmp_path: Path) -> StrategySubject:
    return two_stages(tmp_path)


def test_arguments_of_every_kind(subject: StrategySubject) -> None:
    """Masks with and without rows, a bias that learns, numbers, strings; smaller parts are filled up."""
    options: list[dict[str, Any]] = [
        {},
        {"schedule": "gpipe", "micro_batches": 5, "balance": [1, 3]},
        {"schedule": "interleaved_1f1b", "activation_checkpointing": True},
        {"balance": "activations"},
        {"schedule": "zbv", "balance": "time"},
    ]
    expect_plain(subject, ListedLayers(max_norm=0.3), options)
    expect_plain(subject, ListedLayers(accumulate=2, global_batch=24), options[:1])
    expect_plain(subject, ListedLayers(kind="Skipping"), options[:2])


@pytest.mark.parametrize("kind", ["Encoder", "Blocks"])
def test_encoder_layers_of_torch(subject: StrategySubject, kind: str) -> None:
    expect_plain(
        subject, ListedLayers(kind=kind, max_norm=0.3), [{}, {"activation_checkpointing": True}], 5e-6
    )


@pytest.mark.long
def test_copies(subject: StrategySubject) -> None:
    four = replace(subject.at(4), data_ranks=two_copies)
    expect_plain(four, ListedLayers(max_norm=0.3, global_batch=24), [{"data_parallel_size": 2}])


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_models_of_transformers(subject: StrategySubject, model: str) -> None:
    """As they are, with the loss that they compute, and weights that embedding and head share."""
    expect_plain(subject, LanguageModel(model=model, max_norm=0.1), [{}], 1e-5)
    expect_plain(subject, PaddedModel(model=model, adaptive=True), [{"schedule": "gpipe"}], 1e-5)


def test_a_model_constructed_without_memory(subject: StrategySubject) -> None:
    for recipe in (ListedLayers(), LanguageModel(model="llama")):
        expect_same(subject.run(train_late, recipe), plainly(recipe, 1), 1e-5)


def test_mixed_precision(subject: StrategySubject) -> None:
    recipe = ListedLayers(precision="bf16-mixed", learning_rate=0.01)
    expect_same(subject.run(train_under, recipe, [{}])[0], plainly(recipe, 1), 2e-2)


def test_the_next_fit_in_these_processes_goes_on(subject: StrategySubject) -> None:
    recipe = ListedLayers(steps=4, epochs=None)
    for weights in subject.run(train_twice, recipe):
        expect_close(weights, plain_twice(recipe, subject.shares()), 2e-6, "weights")


REFUSED = {
    "Reversed": r"calls net.blocks\[3\] where net.blocks\[0\] is next",
    "Shortened": r"computes with the output of net.blocks\[2\], which only the next layer gets",
    "Unfinished": "called 1 of the 4 layers of net.blocks",
    "Twice": "net.blocks has a layer twice",
    "Apart": r"calls net.blocks\[1\] with something else than what net.blocks\[0\] returned",
    "Added": r"computes with the output of net.blocks\[0\], which only the next layer gets",
    "Collected": r"computes with the output of net.blocks\[0\], which only the next layer gets",
    "Unsendable": r"calls net.blocks\[0\] with a Unsendable, and a pipeline sends tensors, numbers and strings",
    "Scalar": "layers of net.blocks are called with a tensor without a dimension",
    "Pairs": r"net.blocks\[0\] returns a tuple, and layers of an nn.ModuleList return one tensor",
    "Hooked": "Linear in net.blocks\\[0\\] has forward hooks",
    "Hooking": r"the step registers forward hooks on layers of net.blocks \(Linear 'linear'\)",
    "Keeping": r"KeepingLayer 'net.blocks.\d' keeps a tensor of its forward as 'penalties'",
    "Noting": r"net.blocks\[0\] changes a list or a dict that it is called with",
    "Counting": r"net.blocks\[0\] changes a list or a dict that it is called with",
    "InPlace": r"net.blocks\[0\] changes its activations in place, which other layers are called with, too",
    "Branched": "give all parts of a batch the same arguments, in the same shapes|follow from the batch's shape",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(subject: StrategySubject, kind: str) -> None:
    with pytest.raises(RankError, match=REFUSED[kind]):
        subject.run(train_under, ListedLayers(kind=kind), [{}])
