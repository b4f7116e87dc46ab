"""What diloco can't do is refused in a sentence, as early as it can be known."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from stratagem_diloco import DiLoCoStrategy
from torch import nn

import stratagem


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sync_every": 0}, "sync_every=0 must be at least 1 optimizer step"),
        ({"outer_lr": 0}, "outer_lr=0 must be greater than 0"),
        ({"outer_momentum": 1.0}, "outer_momentum=1.0 must be from 0 to less than 1"),
        ({"outer_grad_dtype": "fp8"}, "outer_grad_dtype='fp8' must be fp16, bf16, int8 or left out"),
        ({"fragments": 0}, "fragments=0 must be from 1 to sync_every=100"),
        ({"sync_every": 3, "fragments": 4}, "fragments=4 must be from 1 to sync_every=3"),
        ({"sync_every": 3, "overlap_steps": 3}, "overlap_steps=3 must be from 0 to less than sync_every=3"),
        ({"mixing": 1.0}, "mixing=1.0 must be from 0 to less than 1"),
    ],
)
def test_what_cant_be_is_refused_by_the_constructor(options: dict[str, Any], words: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        DiLoCoStrategy(**options)


def test_a_replica_may_not_skip_steps_by_itself() -> None:
    with pytest.raises(stratagem.UsageError, match="precision '16-mixed' doesn't work with this strategy"):
        stratagem.Runtime("diloco", accelerator="cpu", devices=2, precision="16-mixed").launch(print)


def zero(runtime: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

        module = nn.Linear(12, 3)
        optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    runtime.setup(module, optimizer)


def test_an_optimizer_that_needs_all_ranks_is_refused() -> None:
    strategy = DiLoCoStrategy(start_method="fork", timeout_s=200)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2)
    with pytest.raises(stratagem.UsageError, match="ZeroRedundancyOptimizer needs all ranks in one step"):
        runtime.launch(zero, quiet=True)
