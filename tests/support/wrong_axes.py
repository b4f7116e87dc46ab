"""Axes that do one thing wrong each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from wrong_parts import caught_by

from stratagem import Prepared
from stratagem.sdk.axes import Axis, AxisSteps, AxisTarget


class CopiesAxis(Axis):
    """A right one: copies whose gradients are averaged before they are used."""

    name = "copies"
    mesh_order = 100
    setup_order = 400
    reads_same_batches = False
    sends = "all gradients before each step (all-reduce)"
    steps: type[CopiesSteps]

    def apply(self, target: AxisTarget) -> AxisSteps:
        return self.steps(target.mesh.get_group(self.name))


class CopiesSteps(AxisSteps):
    has_gradients_to_complete = True

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size = dist.get_world_size(group)

    def complete_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self.average(local(parameter.grad))

    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)
        tensor.div_(self.size)


CopiesAxis.steps = CopiesSteps


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor, in the same memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@caught_by("axis", "declares", "for the plan is too short")
class TellsNothing(CopiesAxis):
    sends = ""


class Sums(CopiesSteps):
    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)


@caught_by("axis", "alone", "in one process")
class SumsGradients(CopiesAxis):
    steps = Sums


class SumsOfSums(CopiesSteps):
    def begin(self, prepared: Prepared) -> None:
        self.weights = prepared.loss_weights

    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)
        if not self.weights.is_used:
            tensor.div_(self.size)


@caught_by("axis", "weighs", "rank")
class AddsWeightedSums(CopiesAxis):
    """Losses with weights are sums, which it takes for something that isn't to be averaged."""

    steps = SumsOfSums


class AfterSteps(CopiesSteps):
    has_gradients_to_complete = False

    def after_step(self, prepared: Prepared, index: int) -> None:
        for group in prepared.optimizers[index].param_groups:
            for parameter in group["params"]:
                self.average(local(parameter))


@caught_by("axis", "saves_whole", "resumed")
class ForgetsMomenta(CopiesAxis):
    """Averages parameters after each step, and a checkpoint has the momenta of one rank."""

    steps = AfterSteps
    lacks = frozenset({"norm_clipping"})


class OverAllRanks(CopiesSteps):
    def average(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor.div_(dist.get_world_size())


@caught_by("axis", "beside_others", "combined with axis")
class AveragesOverAllRanks(CopiesAxis):
    """Of ranks along other axes, too, which have other shards."""

    steps = OverAllRanks
