"""In 16 bits, weights are those of the module to the last bit: at the start, in checkpoints and afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fidelity_cases import Case, Trained, Watch, make_net
from stratagem_deepspeed.conformance import SMALL, SUBJECT
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.strategies.resumption import _SaveAt
from stratagem_testing.trained import train as train_recipe
from torch import Tensor, nn
from torch.optim import Optimizer

pytestmark = pytest.mark.timeout(600)

PLACES: dict[str, dict[str, Any]] = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "1-cpu": {"stage": 1, "offload_optimizer": True},
    "2-cpu": {"stage": 2, "offload_optimizer": True},
    "3-cpu": {"stage": 3, "offload_optimizer": True, "offload_parameters": True},
}


def subject(tmp_path: Path, size: int = 2, **options: Any) -> StrategySubject:
    return replace(SUBJECT, options={**SMALL, **options}, world_size=size, folder=str(tmp_path))


class Resting(Case):
    """A rate of zero, a layer that is frozen, and one that shares its weight."""

    def net(self) -> nn.Module:
        net: Any = make_net()
        net[2].requires_grad_(False)
        tied = nn.Linear(6, 8, bias=False)
        tied.weight = net[0].weight
        return nn.ModuleDict({"net": net, "tied": tied})

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        return super().loss(net["net"], index, rank)

    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.0)


def rest_twice(own: StrategySubject, places: list[str]) -> dict[str, list[dict[str, Tensor]]]:
    """Train twice in these processes; return what was saved each time, and what the module has in the end."""
    came: dict[str, list[dict[str, Tensor]]] = {}
    for place in places:
        module, saved = Trained(Resting()), []
        with torch.no_grad():
            for parameter in module.net.parameters():
                parameter.add_(int(os.environ["RANK"]))  # rank 0's values count
        for _ in range(2):
            watch = Watch()
            replace(own, options={**SMALL, **PLACES[place]}).trainer(
                callbacks=[watch], max_epochs=1, precision="bf16-mixed"
            ).fit(module)
            saved.append(watch.weights)
        came[place] = [*saved, {name: value.detach() for name, value in module.net.named_parameters()}]
    return came


@pytest.mark.parametrize("size", [1, 2])
def test_a_rate_of_zero_changes_nothing(size: int, tmp_path: Path) -> None:
    start = Resting().net().state_dict()
    for came in subject(tmp_path, size).run(rest_twice, list(PLACES), timeout_s=300):
        for place, (first, again, left) in came.items():
            for saved in (first, again):
                for name, value in start.items():
                    assert torch.equal(saved[name], value), f"stage {place}: {name} was rounded"
            assert {value.dtype for value in left.values()} == {torch.float32}
            if size == 1 or not place.startswith("3"):  # in several processes it leaves parts alone
                assert all(torch.equal(value, start[name]) for name, value in left.items()), place


@dataclass(frozen=True)
class Halved(Recipe):
    steps: int | None = 6
    precision: str = "bf16-mixed"

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-3)]


def interrupt(own: StrategySubject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train without a break, and from the checkpoint of step 3; return both runs' weights."""
    path = f"{own.folder}/checkpoint"
    whole = train_recipe(own, Halved(), [_SaveAt(3, path)])
    return whole.weights, train_recipe(own, Halved(), ckpt_path=path).weights


@pytest.mark.parametrize("place", ["1", "2", "2-cpu"])
def test_a_checkpoint_has_the_engines_32_bits(place: str, tmp_path: Path) -> None:
    for whole, resumed in subject(tmp_path, **PLACES[place]).run(interrupt, timeout_s=300):
        for name, value in whole.items():
            assert not torch.equal(value, value.bfloat16().float())
            assert torch.equal(resumed[name], value), name
