"""model_parallel: what a training does to its own parameters, split ones too, and steps without a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixed_batches import Block, Fixed, InBlocks, NoLosses, assert_equals_plain_torch, halve
from stratagem_model_parallel import ModelParallelStrategy
from torch import nn


def strategy(**options: Any) -> ModelParallelStrategy:
    plan = {"blocks.*.layer": "colwise_gathered", "head": "colwise_gathered", **options.pop("plan", {})}
    return ModelParallelStrategy(start_method="fork", timeout_s=200, parallelize=plan, **options)


class Split(InBlocks):
    """All but what torch has no answer to for DTensors: `.data = tensor`, hooks with tensors of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = Block()
        self.blocks[1].layer.weight.register_hook(self.scaled)
        self.blocks[1].layer.bias.register_post_accumulate_grad_hook(halve)
        self.target = nn.Linear(*self.head.weight.shape).requires_grad_(False)
        self.rows = [self.blocks[1].layer.weight]

    def scaled(self, gradient: Any) -> Any:
        return 0.25 * gradient

    def shift(self, parameter: Any) -> None:
        parameter.data.add_(0.1)

    def loss(self, x: Any, y: Any, index: int) -> Any:
        assert self.rows[0].requires_grad
        return super().loss(x, y, index)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("tensor", [2, 1])
def test_parameters_of_blocks(tmp_path: Path, devices: int, tensor: int) -> None:
    ours = strategy(tensor_parallel_size=tensor, plan={"target": "colwise_gathered"})
    assert_equals_plain_torch(Ours(), Ours(), ours, tmp_path, devices)


class Ours(Split):
    """Batches are shared among copies of the model, not among ranks."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return split_among_copies(self, batch_idx)


class OursWithoutLosses(NoLosses):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return split_among_copies(self, batch_idx)


def split_among_copies(module: Fixed, index: int) -> Any:
    from fixed_batches import data

    ranks = module.trainer.runtime.collectives.data
    x, y = (each.chunk(ranks.world_size)[ranks.rank] for each in data(index))
    return module.loss(x, y, index)


@pytest.mark.parametrize(("devices", "tensor"), [(2, 2), (4, 2)])
def test_a_batch_without_a_loss_adds_nothing_wherever_it_is(
    tmp_path: Path, devices: int, tensor: int
) -> None:
    ours = strategy(tensor_parallel_size=tensor)
    assert_equals_plain_torch(
        OursWithoutLosses(window=2), OursWithoutLosses(window=2), ours, tmp_path, devices
    )
