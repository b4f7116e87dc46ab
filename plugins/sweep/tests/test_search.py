"""`--search`: names, ranges and choices."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from stratagem_cli.settings import merged
from stratagem_cli.typed import typed
from stratagem_sweep.search import Searched, written

from stratagem.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "distribution"),
    [
        ("lr=1e-4:1e-1:log", "model.lr", FloatDistribution(1e-4, 1e-1, log=True)),
        ("model.layers=1:8", "model.layers", IntDistribution(1, 8)),
        ("width=16:64:16", "model.width", IntDistribution(16, 64, step=16)),
        ("width=16:256:log", "model.width", IntDistribution(16, 256, log=True)),
        ("dropout=0:0.5:0.25", "model.dropout", FloatDistribution(0, 0.5, step=0.25)),
        ("data.size = 32, 64", "data.size", CategoricalDistribution(["32", "64"])),
        ("seed=1,2", "seed", CategoricalDistribution(["1", "2"])),
        ("strategy=ddp,fsdp", "strategy", CategoricalDistribution(["ddp", "fsdp"])),
    ],
)
def test_what_optuna_draws_from(text, key, distribution):
    found = Searched.parse(text)
    assert (found.key, found.distribution()) == (key, distribution)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("width=16:64:16", [16, 32, 48, 64]),
        ("layers=1:3", [1, 2, 3]),
        ("rate=0.1:0.3:0.1", [0.1, 0.2, 0.3]),
        ("kind=a,b", ["a", "b"]),
    ],
)
def test_all_values_of_a_grid(text, values):
    assert Searched.parse(text).grid() == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "write NAME=LOW:HIGH"),
        ("=1:2", "write NAME=LOW:HIGH"),
        ("model.=1:2", "write NAME=LOW:HIGH"),
        ("lr=3", "write NAME=LOW:HIGH"),
        ("lr=1:2:3:4", "write NAME=LOW:HIGH"),
        ("modle.lr=1:2", "'modle' is no section; sections are model, data"),
        ("lr=2:1", "2 must be less than 1"),
        ("lr=0:1:log", "must begin above 0"),
        ("lr=0:1:2", "the step 2 must be above 0"),
        ("lr=0:one", "'one' is no number"),
        ("lr=0:inf", "'inf' is no number"),
        ("width=32,32", "each once"),
        ("width=32,", "two or more values"),
        ("widths=[8,8],[16]", "can't be a list"),
    ],
)
def test_what_cannot_be_read(text, words):
    with pytest.raises(ConfigError, match="can't be used: ") as caught:
        Searched.parse(text)
    assert words in str(caught.value)


def test_a_grid_needs_a_step():
    with pytest.raises(
        ConfigError, match=r"got a range without a step: list them, as --search model\.lr=A,B,C"
    ):
        Searched.parse("lr=1e-4:1e-1:log").grid()


@pytest.mark.parametrize("value", [1e-05, 1.5e-07, 3e16, 0.25, 12.0])
def test_a_drawn_number_is_a_number_for_a_parameter_without_a_type(value):
    def make(rate=None):
        """Has no types."""

    settings = merged(sets=[f"model.rate={written(value)}"])
    assert typed(make, settings.model, "model") == {"rate": value}
