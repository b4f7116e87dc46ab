"""`Runtime.accumulate` on real processes, against plain PyTorch with the division written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import Line, samples
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem

BATCH = 8
"""Samples of a global micro-batch: 48 samples are 6 of them, two windows of 4 and 2."""


def by_context(runtime: Any, zeroes_first: bool, weighted: bool) -> Any:
    torch.manual_seed(0)
    model = Line()
    made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = runtime.setup(model, made, accumulate=4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loader = runtime.dataloader(DataLoader(samples(), BATCH // runtime.data_ranks))
    steps, norms = [], []
    for _ in range(2):
        for place, (x, y) in enumerate(loader):
            with runtime.accumulate(loader):
                if zeroes_first:
                    optimizer.zero_grad()
                if weighted:
                    loss = F.mse_loss(model(x), y, reduction="sum")
                    runtime.backward(loss, weight=y.numel())
                else:
                    runtime.backward(F.mse_loss(model(x), y))
                norms.append(runtime.clip(optimizer, max_norm=0.5))
                optimizer.step()
                if not zeroes_first:
                    optimizer.zero_grad()
                if runtime.sync_gradients:
                    scheduler.step()
                    steps.append(place)
    assert steps == [3, 5, 3, 5]
    assert [norm is not None for norm in norms] == [place in (3, 5) for place in range(6)] * 2
    return whole(runtime, model)


def whole(runtime: Any, model: Any) -> list[list[float]]:
    """Return every parameter's numbers, gathered."""
    values = []
    for parameter in model.parameters():
        full = getattr(parameter, "full_tensor", None)
        values.append((parameter if full is None else full()).detach().flatten().tolist())
    return values


def by_hand() -> list[list[float]]:
    torch.manual_seed(0)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        for place, (x, y) in enumerate(DataLoader(samples(), BATCH)):
            (F.mse_loss(model(x), y) / (4 if place < 4 else 2)).backward()
            if place in (3, 5):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("zeroes_first", [True, False])
@pytest.mark.parametrize(
    ("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("ddp_sharded", 2)]
)
def test_windows_and_the_shorter_last_one_equal_a_division_by_hand(
    strategy: str, devices: int, zeroes_first: bool
) -> None:
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=devices)
    found = runtime.launch(by_context, zeroes_first, False, quiet=True)
    for own, plain in zip(found, by_hand()):
        assert own == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_losses_with_weights_are_not_divided(strategy: str) -> None:
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=2)
    found = runtime.launch(by_context, False, True, quiet=True)
    for own, plain in zip(found, by_hand()):
        assert own == pytest.approx(plain, abs=1e-6)
