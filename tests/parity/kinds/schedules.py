"""Schedulers of torch, several per kind: each multiplies the rate of an optimizer of its own or in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as schedule

from tests.parity.kind import Kind


class Scheduled(Kind, abstract=True):
    theme = "schedulers"
    epochs = 3
    count = 3

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class StepSchedules(Scheduled):
    """StepLR, MultiStepLR and ConstantLR, per step."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        (one,) = optimizers
        return [
            (schedule.StepLR(one, 2, 0.8), "step"),
            (schedule.MultiStepLR(one, [3, 5], 0.7), "step"),
            (schedule.ConstantLR(one, 0.5, 2), "step"),
        ]


class SmoothSchedules(Scheduled):
    """LinearLR, ExponentialLR and PolynomialLR, per epoch."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        (one,) = optimizers
        return [
            (schedule.LinearLR(one, 0.5, 1.0, 2), "epoch"),
            (schedule.ExponentialLR(one, 0.9), "epoch"),
            (schedule.PolynomialLR(one, 5), "epoch"),
        ]


def _halved(step: int) -> float:
    return 0.9**step


class FunctionSchedules(Scheduled):
    """LambdaLR and MultiplicativeLR."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        (one,) = optimizers
        return [
            (schedule.LambdaLR(one, _halved), "step"),
            (schedule.MultiplicativeLR(one, _halved), "epoch"),
        ]


class CosineSchedules(Scheduled):
    """CosineAnnealingLR after a warm-up, by SequentialLR."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        (one,) = optimizers
        warm, cosine = schedule.LinearLR(one, 0.1, 1.0, 3), schedule.CosineAnnealingLR(one, 6)
        return [(schedule.SequentialLR(one, [warm, cosine], [3]), "step")]


class ChainedSchedules(Scheduled):
    """CosineAnnealingWarmRestarts within ChainedScheduler."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        (one,) = optimizers
        parts = [schedule.CosineAnnealingWarmRestarts(one, 4), schedule.ExponentialLR(one, 0.95)]
        return [(schedule.ChainedScheduler(parts, one), "step")]


class OneCycle(Scheduled):
    """OneCycleLR, which cycles momentum too."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        return [(schedule.OneCycleLR(optimizers[0], 0.2, total_steps=12), "step")]


class Cyclic(Scheduled):
    """CyclicLR."""

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        return [(schedule.CyclicLR(optimizers[0], 0.01, 0.2, step_size_up=3), "step")]


class Plateau(Scheduled):
    """ReduceLROnPlateau, by the epoch's mean loss."""

    monitored = True
    epochs = 5

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        return [(schedule.ReduceLROnPlateau(optimizers[0], factor=0.3, patience=0, threshold=0.5), "epoch")]
