"""What the core itself offers."""

from __future__ import annotations

import pluggy
import pytest
import torch

from stratagem.environments.base import Environment
from stratagem.plugin import own
from stratagem.plugin.component import Component
from stratagem.plugin.hookspecs import PROJECT, DiscoveryHooks
from stratagem.plugin.own import stratagem_components
from stratagem.precision.base import Precision


def test_the_entry_point_answers_discovery() -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoveryHooks)
    manager.register(own)
    assert manager.hook.stratagem_components() == [stratagem_components()]


OFFERED = {(each.kind, each.name): each for each in stratagem_components()}
ENVIRONMENTS = [each for each in stratagem_components() if each.kind == "environment"]
PRECISIONS = [each for each in stratagem_components() if each.kind == "precision"]


def test_these_are_offered_and_nothing_else() -> None:
    assert [each.name for each in ENVIRONMENTS] == ["single"]
    assert {each.name: each.aliases for each in PRECISIONS} == {
        "32-true": ("32",),
        "64-true": ("64",),
        "bf16-mixed": ("bf16",),
        "16-mixed": ("16",),
        "bf16-true": (),
        "16-true": (),
    }
    assert len(OFFERED) == len(stratagem_components()) == len(ENVIRONMENTS) + len(PRECISIONS)
    assert all(each.summary for each in OFFERED.values())


@pytest.mark.parametrize("component", ENVIRONMENTS, ids=lambda each: each.name)
def test_an_environment_is_what_its_record_says(component: Component) -> None:
    cls = component.load()
    assert issubclass(cls, Environment)
    assert cls.name == component.name


def test_what_fits_always_comes_after_other_components() -> None:
    theirs = Component("environment", "theirs", "m:C", "").priority
    assert [each.priority for each in ENVIRONMENTS] == [-10]
    assert theirs > -10


@pytest.mark.parametrize("component", PRECISIONS, ids=lambda each: each.name)
def test_a_precision_is_what_its_name_says(component: Component) -> None:
    made = component.load()(component.name, torch.device("cpu"))
    assert isinstance(made, Precision)
    assert made.name == component.name
    dtypes = {"32": torch.float32, "64": torch.float64, "bf16": torch.bfloat16, "16": torch.float16}
    bits, _, kind = component.name.partition("-")
    dtype = made.compute_dtype if kind == "mixed" else made.param_dtype or torch.float32
    assert dtype == dtypes[bits]
