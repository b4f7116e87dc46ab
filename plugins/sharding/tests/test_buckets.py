"""Tensors of any shapes and dtypes travel in few messages, and come back where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_sharding import buckets as flat
from stratagem_sharding.buckets import broadcast_coalesced, flattened_buckets, gradients_of_any
from stratagem_testing import StrategySubject
from torch import nn


def test_what_became_of_each_is_taken_back() -> None:
    tensors = [torch.ones(2, 3), torch.tensor(5), torch.zeros(4).requires_grad_(), torch.ones(3, 2).t()]
    dtypes = []
    for each in flattened_buckets(tensors):
        dtypes.append(each.dtype)
        each.add_(1)
    assert dtypes == [torch.float32, torch.int64]
    assert [tensor.unique().tolist() for tensor in tensors] == [[2.0], [6], [1.0], [2.0]]


def test_buckets_are_not_larger_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "BUCKET", 5)
    sizes = [each.numel() for each in flattened_buckets([torch.zeros(n) for n in (2, 3, 1, 9, 4)])]
    assert sizes == [5, 1, 9, 4]


def talk(runtime: Any) -> tuple[list[Any], list[float], list[Any]]:
    rank = runtime.rank
    sent = [torch.full((2,), float(rank)), torch.tensor(rank + 7), torch.tensor(rank == 0)]
    broadcast_coalesced(sent)
    parameters = [nn.Parameter(torch.zeros(())) for _ in range(3)]
    if rank == 1:
        parameters[1].grad = torch.tensor(3.0)
    found = gradients_of_any(parameters, [p.grad is not None for p in parameters], torch.device("cpu"))
    assert gradients_of_any([], [], torch.device("cpu")) == []
    return (
        [each.tolist() for each in sent],
        [float(each) for each in found],
        [p.grad is None for p in parameters],
    )


def both(subject: StrategySubject) -> Any:
    return subject.runtime().launch(talk, quiet=True)


def test_ranks_get_the_first_ones_values_and_know_of_gradients(tmp_path: Path) -> None:
    subject = StrategySubject("ddp", world_size=2, options={"timeout_s": 60}, folder=str(tmp_path))
    first, second = subject.run(both)
    assert first == ([[0.0, 0.0], 7, True], [0.0], [True, False, True])
    assert second == ([[0.0, 0.0], 7, True], [3.0], [True, False, True])
