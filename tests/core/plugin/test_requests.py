"""What hooks are asked: fixed records."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from stratagem.collectives.local import LocalCollectives
from stratagem.config import RunConfig
from stratagem.plugin.requests import (
    CheckpointRequest,
    Clipping,
    LaunchRequest,
    LoopPlan,
    ModuleSteps,
    PrecisionRequest,
    ReduceRequest,
    SetupRequest,
)
from stratagem.precision.base import Precision

META, CPU = torch.device("meta"), torch.device("cpu")
NET = nn.Linear(1, 1)


def setup(**fields: Any) -> SetupRequest:
    return SetupRequest(NET, NET, list, (META, CPU), LocalCollectives(CPU), Precision(), **fields)


@pytest.mark.parametrize(
    "cls",
    [
        CheckpointRequest,
        Clipping,
        LaunchRequest,
        LoopPlan,
        ModuleSteps,
        PrecisionRequest,
        ReduceRequest,
        SetupRequest,
    ],
)
def test_requests_are_fixed(cls: type) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    required = [
        f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
    ]
    made = cls(**dict.fromkeys(required))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, names[0], 1)


def test_the_first_device_is_the_device() -> None:
    assert setup().device == META
    assert ReduceRequest(None, (META, CPU), None).device == META  # type: ignore[arg-type]  # only devices are read


def test_a_loop_that_says_nothing_trains_each_batch_unclipped() -> None:
    assert LoopPlan() == LoopPlan(
        training=True, manual=False, accumulate=1, clipping=Clipping(None, None, 2.0), micro_batch_size=None
    )
    request = setup()
    assert (request.loop, request.steps, request.left_shards) == (LoopPlan(), None, None)
    assert request.config == RunConfig()


def test_without_a_number_steps_are_those_of_a_training() -> None:
    steps = ModuleSteps(NET)
    assert (steps.step_end_fns, steps.make_sample, steps.sample_step) == ({}, None, "training_step")
    assert steps.step_end_fns is not ModuleSteps(NET).step_end_fns
