"""How an optimizer of sharded parameters steps: by its shards, or by whole tensors on one rank or on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from all_optimizers import OwnGlobalNorm, OwnRowNorm, OwnSign
from stratagem_sharding.local_step import LocalStep
from stratagem_sharding.whole_steps import (
    OwnedStep,
    ReplicatedStep,
    reason_despite_wholes,
    sharded_step,
    sharded_step_again,
)
from torch import nn
from torch.optim import Optimizer
from whole_optimizers import Wrapper

from stratagem import ConfigError, Strategy

REASON = "it needs whole tensors"


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(8))]


def at_once() -> Optimizer:
    return OwnGlobalNorm(parameters(), lr=0.1)


def reason(optimizer: Optimizer, has_all: bool = True) -> str | None:
    return reason_despite_wholes(Strategy(), optimizer, REASON, has_all=has_all)


def test_what_steps_shards_steps_shards() -> None:
    optimizer = OwnSign(parameters())
    assert reason_despite_wholes(Strategy(), optimizer, None) is None
    assert type(sharded_step(optimizer, "fsdp")) is LocalStep


def test_what_needs_whole_tensors_steps_each_on_one_rank() -> None:
    optimizer = OwnRowNorm(parameters())
    assert reason(optimizer) is None
    assert type(sharded_step(optimizer, "fsdp")) is OwnedStep


def test_what_needs_all_steps_them_on_every_rank_and_says_what_it_takes() -> None:
    optimizer = at_once()
    assert reason(optimizer) is None
    with pytest.warns(
        UserWarning, match="OwnGlobalNorm steps all parameters, whole, on every rank, with the memory"
    ):
        assert type(sharded_step(optimizer, "fsdp")) is ReplicatedStep
    assert "it needs all parameters at once" in str(reason(at_once(), has_all=False))


class Strange(Optimizer):
    def step(self, inputs: Any) -> None:  # type: ignore[override]  # torch's takes a closure
        inputs.backward()


def test_what_cant_be_tried_is_refused() -> None:
    assert "couldn't be tried on small tensors" in str(reason(Strange(parameters(), {})))


class Noisy(OwnGlobalNorm):
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        return super().step(closure)


def test_what_needs_all_and_draws_random_numbers_is_refused() -> None:
    assert "draws random numbers, which differ between ranks" in str(reason(Noisy(parameters(), lr=0.1)))


def test_settings_that_are_switched_change_how_it_steps() -> None:
    optimizer, tried = OwnSign(parameters()), OwnRowNorm(parameters())
    assert reason(tried) is None
    assert type(sharded_step_again(LocalStep(optimizer), optimizer, tried, "fsdp")) is OwnedStep
    owned = OwnedStep(optimizer, "fsdp")
    assert sharded_step_again(owned, optimizer, tried, "fsdp") is owned
    assert sharded_step_again(owned, optimizer, OwnSign(parameters()), "fsdp") is owned  # it was never tried


def test_states_of_some_ranks_dont_come_to_all_in_mid_training() -> None:
    optimizer, tried = OwnRowNorm(parameters()), at_once()
    assert reason(tried) is None
    with pytest.raises(ConfigError, match="under fsdp, each rank has states of some of them"):
        sharded_step_again(OwnedStep(optimizer, "fsdp"), optimizer, tried, "fsdp")


def test_shards_in_an_attribute_dont_become_whole_in_mid_training() -> None:
    optimizer, tried = Wrapper(OwnSign(parameters())), OwnRowNorm(parameters())
    assert reason(tried) is None
    with pytest.raises(ConfigError, match="it has those of shards in 'base'"):
        sharded_step_again(LocalStep(optimizer), optimizer, tried, "fsdp")


@pytest.mark.parametrize("kind", [OwnedStep, ReplicatedStep])
def test_parameters_in_an_attribute_are_refused(kind: type[OwnedStep] | type[ReplicatedStep]) -> None:
    optimizer = OwnSign(parameters())
    optimizer.anchors = optimizer.param_groups[0]["params"]  # type: ignore[attr-defined]  # the list itself
    kind(optimizer, "fsdp")
    optimizer.anchors = list(optimizer.param_groups[0]["params"])  # type: ignore[attr-defined]  # a copy
    with pytest.raises(ConfigError, match="keeps parameters elsewhere, too"):
        kind(optimizer, "fsdp")
