"""Names of the plugin API before this one read what the present ones have, and say so."""

import warnings
from importlib import import_module

import pytest
import torch
from torch import nn

from stratagem import (
    Component,
    LocalCollectives,
    LoopPlan,
    ModuleSteps,
    Precision,
    Prepared,
    RunConfig,
    SetupRequest,
)
from stratagem.names.deprecation import Renamed, replaced_names
from stratagem.names.offered import MOVED
from stratagem.sdk import catalogue

NET = nn.Linear(2, 1)
CPU = torch.device("cpu")
STEPS = ModuleSteps(NET, {"training_step": sum}, lambda: 3, "test_step")


def request(**further):
    return SetupRequest(
        module=NET,
        original_module=NET,
        make_optimizers=lambda: [torch.optim.SGD(NET.parameters(), lr=0.1)],
        devices=(CPU,),
        collectives=LocalCollectives(CPU),
        precision=Precision(),
        **further,
    )


FULL = {
    "loop": LoopPlan(True, accumulate=3, micro_batch_size=5),
    "steps": STEPS,
    "config": RunConfig(run_dir="somewhere", log_level="info"),
}
FORMER = [
    ("plain", "original_module", NET),
    ("training", "loop.training", True),
    ("manual", "loop.manual", False),
    ("accumulate", "loop.accumulate", 3),
    ("clipping", "loop.clipping", LoopPlan().clipping),
    ("micro_batch_size", "loop.micro_batch_size", 5),
    ("run_dir", "config.run_dir", "somewhere"),
    ("log_level", "config.log_level", "info"),
    ("part", "steps.chunk_module", NET),
    ("ends", "steps.step_end_fns", STEPS.step_end_fns),
    ("sample", "steps.make_sample", STEPS.make_sample),
    ("step", "steps.sample_step", "test_step"),
]


@pytest.mark.parametrize(("former", "present", "value"), FORMER)
def test_a_requests_former_name_reads_and_warns(former, present, value):
    with pytest.warns(
        DeprecationWarning, match=rf"SetupRequest.{former} is now called SetupRequest.{present}"
    ):
        assert getattr(request(**FULL), former) == value


def test_every_former_name_is_tried_here():
    assert {name for name, value in vars(SetupRequest).items() if isinstance(value, Renamed)} == {
        former for former, _, _ in FORMER
    }


@pytest.mark.parametrize(("former", "value"), [("part", None), ("ends", {}), ("step", "training_step")])
def test_a_former_name_of_a_record_that_is_not_there_reads_as_before(former, value):
    with pytest.warns(DeprecationWarning, match="is now called"):
        assert getattr(request(), former) == value


def test_prepared_has_its_former_name():
    with pytest.warns(DeprecationWarning, match="Prepared.plain is now called Prepared.original_module"):
        assert Prepared(request()).plain is NET


def test_present_names_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = request(**FULL)
        assert (made.device, made.loop.accumulate) == (CPU, 3)
        assert Prepared(made).original_module is NET


@pytest.mark.parametrize("former", ["Offer", "Selection"])
def test_a_former_name_of_the_sdk_is_found_and_warns(former):
    said = f"stratagem.sdk.catalogue.{former} is now stratagem.Component; the former name goes with the next"
    with pytest.warns(DeprecationWarning, match=said) as told:
        assert getattr(catalogue, former) is Component
    assert told[0].filename == __file__


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in MOVED for name in MOVED[module]])
def test_a_name_that_moved_to_another_distribution_is_found_and_warns(module, name):
    where, _, present = MOVED[module][name].partition(":")
    get = replaced_names(module, MOVED[module])
    with pytest.warns(
        DeprecationWarning, match=f"{module}.{name} is now {where}.{present}; the former name goes"
    ):
        assert get(name) is getattr(import_module(where), present)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert getattr(import_module(module), name) is get(name)


def test_a_name_whose_distribution_is_absent_says_what_to_install():
    get = replaced_names("some_sdk", {"Former": "stratagem_nowhere.module:Former"})
    with pytest.raises(
        ImportError, match="Former is in stratagem-nowhere, which is not installed: pip install"
    ):
        get("Former")


def test_a_former_name_warns_once_and_others_are_as_unknown_as_ever():
    get = replaced_names("some_sdk", {"Former": "stratagem:Component"})
    with pytest.warns(DeprecationWarning, match="some_sdk.Former is now stratagem.Component"):
        assert get("Former") is Component
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get("Former") is Component
    with pytest.raises(AttributeError, match="module 'some_sdk' has no attribute 'Other'"):
        get("Other")
