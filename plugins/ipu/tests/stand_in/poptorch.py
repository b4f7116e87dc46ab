"""Stands in for Graphcore's poptorch, which has no wheel for this PyTorch and no device here.

Its "device" is a copy of the parameters, which the host doesn't see until they are copied. As poptorch does, it cuts
batches into parts, averages their gradients, steps by itself, and hands out one loss per part.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Any

import torch
from torch import nn

CALLS: list[str] = []


class OutputMode(Enum):
    All = 1
    Final = 2


class ReductionType(Enum):
    Mean = 1
    Sum = 2


class _Training:
    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.said.__setitem__(name, value)


class Options(_Training):
    def __init__(self) -> None:
        super().__init__()
        self.Training = _Training()


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    return num_ipus <= int(os.environ.get("STAND_IN_IPUS", "4"))


def identity_loss(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    assert reduction == "none"
    assert not loss.dim()
    return loss


def trainingModel(model: nn.Module, options: Options, optimizer: torch.optim.Optimizer) -> StandInExecutor:
    CALLS.append(f"compile {options.said} {options.Training.said}")
    return StandInExecutor(model, options, optimizer)


class StandInExecutor:
    def __init__(self, model: nn.Module, options: Options, optimizer: torch.optim.Optimizer) -> None:
        assert options.said["outputMode"] is OutputMode.All
        assert options.Training.said["accumulationAndReplicationReductionType"] is ReductionType.Mean
        self._model = model
        self._parts = options.said["replicationFactor"] * options.Training.said["gradientAccumulation"]
        self.copyWeightsToDevice()
        self.setOptimizer(optimizer)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        CALLS.append("setOptimizer")
        (group,) = optimizer.param_groups
        self._lr, self._decay = group["lr"], group["weight_decay"]

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            losses = [
                torch.func.functional_call(self._model, self._device, part)
                for part in zip(*(tensor.chunk(self._parts) for tensor in tensors))
            ]
            trained = [p for p in self._device.values() if p.requires_grad]
            gradients = torch.autograd.grad(torch.stack(losses).mean(), trained)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients):
                parameter -= self._lr * (gradient + self._decay * parameter)
        return torch.stack(losses).detach()

    def copyWeightsToHost(self) -> None:
        CALLS.append("copyWeightsToHost")
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._device[name])

    def copyWeightsToDevice(self) -> None:
        self._device = {
            name: p.detach().clone().requires_grad_(p.requires_grad)
            for name, p in self._model.named_parameters()
        }

    def destroy(self) -> None:
        CALLS.append("destroy")
