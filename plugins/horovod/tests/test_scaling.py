"""Learning rates are scaled in steps alone, so that schedulers of any kind come to the scaled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from stratagem_horovod.scaling import ScaledLearningRates
from torch import nn
from torch.optim import lr_scheduler as schedulers

MAKE: dict[str, Callable[[Any, float], Any]] = {
    "none": lambda optimizer, lr: None,
    "step": lambda optimizer, lr: schedulers.StepLR(optimizer, 2, 0.5),
    "lambda": lambda optimizer, lr: schedulers.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "cosine": lambda optimizer, lr: schedulers.CosineAnnealingLR(optimizer, 5),
    "one_cycle": lambda optimizer, lr: schedulers.OneCycleLR(optimizer, lr, total_steps=20),
    "warm_up": lambda optimizer, lr: schedulers.LinearLR(optimizer, 0.1, total_iters=4),
}


def trained(lr: float, factor: int, scheduler: str, kind: Any) -> tuple[torch.Tensor, float]:
    """Return the weight after some steps, and the learning rate that the optimizer shows then."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = kind(net.parameters(), lr=lr, weight_decay=0.1)
    schedule = MAKE[scheduler](optimizer, lr)
    scaled = ScaledLearningRates([optimizer], factor)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    scaled.release()
    return net.weight.detach(), optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("scheduler", MAKE)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_is_that_of_the_scaled_rate(scheduler: str, kind: Any) -> None:
    weight, lr = trained(0.01, 4, scheduler, kind)
    wanted, scaled_lr = trained(0.04, 1, scheduler, kind)
    assert lr == pytest.approx(scaled_lr / 4)
    torch.testing.assert_close(weight, wanted)


def test_after_a_step_that_raised_the_rate_is_scaled_once() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaled = ScaledLearningRates([optimizer], 2)

    def raises() -> float:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimizer.step(raises)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == pytest.approx(0.8)
    assert optimizer.param_groups[0]["lr"] == 0.1
    scaled.release()


def test_a_tensor_stays_the_same_one() -> None:
    weight = nn.Parameter(torch.ones(1))
    lr = torch.tensor(0.1)
    optimizer = torch.optim.SGD([weight], lr=lr)
    ScaledLearningRates([optimizer], 3)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == pytest.approx(0.7)
    assert optimizer.param_groups[0]["lr"] is lr
