"""What a training does to its own parameters, and steps without a loss: as in plain torch, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stratagem_fsdp.gather_order
import stratagem_fsdp.reduce_order
import torch
from fixed_batches import (
    BehindItsModule,
    ByRank,
    Experts,
    InBlocks,
    NoLosses,
    NoLossOnOneRank,
    TwoHeads,
    assert_equals_plain_torch,
    fit,
)
from stratagem_fsdp import FSDPStrategy
from torch.distributed.fsdp import MixedPrecisionPolicy

import stratagem
from stratagem.errors import DataError


def strategy(**options: Any) -> FSDPStrategy:
    return FSDPStrategy(start_method="fork", timeout_s=200, **options)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (1, {}),
        (2, {}),
        (2, {"sharding_strategy": "SHARD_GRAD_OP"}),
        (4, {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2)}),
        (2, {"mixed_precision": MixedPrecisionPolicy(reduce_dtype=torch.float64)}),
        (2, {"cpu_offload": True}),
    ],
)
def test_parameters_of_blocks(tmp_path: Path, devices: int, options: dict[str, Any]) -> None:
    assert_equals_plain_torch(InBlocks(), InBlocks(), strategy(**options), tmp_path, devices)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_batch_without_a_loss_adds_nothing_wherever_it_is(tmp_path: Path, devices: int) -> None:
    assert_equals_plain_torch(NoLosses(window=2), NoLosses(window=2), strategy(), tmp_path, devices)


def test_a_loss_on_some_ranks_alone_is_refused(tmp_path: Path) -> None:
    # Ranks that waited for each other would do so for 30 minutes.
    with pytest.raises(DataError, match="returned None on rank 1 and not on all ranks: under fsdp"):
        fit(NoLossOnOneRank(), strategy(), tmp_path)


def test_ranks_that_call_the_same_experts_train(tmp_path: Path) -> None:
    assert_equals_plain_torch(Experts(by_rank=False), Experts(by_rank=False), strategy(), tmp_path)


def test_ranks_that_call_other_experts_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_fsdp.gather_order, "WAIT_S", 3.0)
    with pytest.raises(
        stratagem.CombinationError, match=r"calls 'blocks\.[01]' as sharded block 1 of a step"
    ):
        fit(Experts(by_rank=True), strategy(), tmp_path)


def test_changes_in_place_that_differ_between_ranks_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        stratagem.StratagemError, match="ReplicaError: after step 1, the changes in place of parameters"
    ):
        fit(ByRank(), strategy(), tmp_path)


def test_changes_by_way_of_a_shard_are_refused_where_all_of_it_is_in_use(tmp_path: Path) -> None:
    with pytest.raises(
        stratagem.ConfigError, match=r"'head\.weight' was changed in place by way of its shard"
    ):
        fit(BehindItsModule(), strategy(), tmp_path)


def test_ranks_that_use_other_parameters_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratagem_fsdp.reduce_order, "WAIT_S", 3.0)
    with pytest.raises(
        stratagem.StratagemError, match=r"gradient of '[a-z.]*' in this step, and other ranks don't agree"
    ):
        fit(TwoHeads(), strategy(), tmp_path)
