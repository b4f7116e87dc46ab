"""ddp_fully_sharded: what a training does to its own parameters, and steps without a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stratagem_fsdp.gather_order
import stratagem_fsdp.reduce_order
import stratagem_sharded.blocks
import torch
from fixed_batches import (
    Experts,
    Fixed,
    InBlocks,
    NoLosses,
    NoLossOnOneRank,
    TwoHeads,
    assert_equals_plain_torch,
    fit,
)
from stratagem_sharded import DDPFullyShardedStrategy, DDPShardedStrategy

import stratagem
from stratagem.errors import DataError


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_sharded.blocks, "MIN_BLOCK_NUMEL", 1)


def strategy(**options: Any) -> DDPFullyShardedStrategy:
    return DDPFullyShardedStrategy(start_method="fork", timeout_s=200, **options)


def test_parameters_of_blocks(tmp_path: Path) -> None:
    assert_equals_plain_torch(InBlocks(), InBlocks(), strategy(), tmp_path)


@pytest.mark.parametrize("reduce_each_micro_batch", [True, False])
def test_a_batch_without_a_loss_adds_nothing_wherever_it_is(
    tmp_path: Path, reduce_each_micro_batch: bool
) -> None:
    ours = strategy(reduce_each_micro_batch=reduce_each_micro_batch)
    assert_equals_plain_torch(NoLosses(window=2), NoLosses(window=2), ours, tmp_path)


def test_a_loss_on_some_ranks_alone_is_refused_within_seconds(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="returned None on rank 1 and not on all ranks: under ddp_fully_sharded"
    ):
        fit(NoLossOnOneRank(), strategy(), tmp_path)


def test_ranks_that_call_other_experts_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_fsdp.gather_order, "WAIT_S", 3.0)
    with pytest.raises(
        stratagem.CombinationError, match=r"calls 'blocks\.[01]' as sharded block 1 of a step"
    ):
        fit(Experts(by_rank=True), strategy(), tmp_path)


def test_ranks_that_use_other_parameters_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_fsdp.reduce_order, "WAIT_S", 3.0)
    with pytest.raises(
        stratagem.StratagemError, match=r"gradient of '[a-z.]*' in this step, and other ranks don't agree"
    ):
        fit(TwoHeads(), strategy(), tmp_path)


class AddedGroup(Fixed):
    """A block is unfrozen, and given to the optimizer, when training has begun."""

    def before(self, index: int) -> None:
        self.blocks[0].requires_grad_(index >= 4)
        if index == 4:
            self.made.add_param_group({"params": list(self.blocks[0].parameters()), "lr": 0.1})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [*self.blocks[1].parameters(), *self.head.parameters()]
        self.made = torch.optim.SGD(trained, lr=0.2, momentum=0.9)
        return self.made


@pytest.mark.parametrize("as_bucket_view", [False, True])
def test_ddp_sharded_steps_a_group_that_is_added_in_mid_run(tmp_path: Path, as_bucket_view: bool) -> None:
    ours = DDPShardedStrategy(start_method="fork", timeout_s=200, parameters_as_bucket_view=as_bucket_view)
    assert_equals_plain_torch(AddedGroup(), AddedGroup(), ours, tmp_path)
