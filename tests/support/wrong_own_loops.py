"""Strategies that are right for the Trainer's loop, and wrong for what your own training loop does itself."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from averaging import AveragedPrepared
from planting import caught_by
from torch import nn


@caught_by("own_loop", "the loss of the critic in step 1")
class AveragesTheFirst(AveragedPrepared):
    def averaged(self) -> Any:
        firsts = self.request.config.strategy.__dict__.setdefault("_firsts", [])
        if not firsts:
            firsts.append(self.original_module)
        return firsts[0].parameters()


@caught_by("own_loop", "after loading, the loss of the actor in step 3")
class KeepsNoOptimizers(AveragedPrepared):
    """Starts again with each optimizer where modules have names."""

    def load(self, reader: Any, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only or "modules" in reader.state["prepared"])


@caught_by("own_loop", "the loss of the actor in step 0")
class StepsPastTheModule(AveragedPrepared):
    """Calls the user's module where it is given another to call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.steps is not None:  # a trainer calls steps of the module
            return super().forward(*args, **kwargs)
        return self.original_module(*(each for each in args if not isinstance(each, str)), **kwargs)


# Backwards that a loop runs itself -----------------------------------------------------------------------


@caught_by("own_backwards", "last window within no sync: the loss")
class LeavesTheLastWindow(AveragedPrepared):
    """Steps with each rank's own gradients where the last backward was within `no_sync`."""

    is_local = False

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        self.is_local = not self.syncing

    def complete_gradients(self, index: int) -> None:
        if not self.is_local:
            super().complete_gradients(index)


@caught_by("own_backwards", "two forwards and two backwards: the loss")
class AveragesOncePerForward(AveragedPrepared):
    """As hooks that a forward arms once: the second of two backwards isn't averaged."""

    is_armed = is_reduced = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.is_armed, self.is_reduced = True, False
        return super().forward(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        is_armed, self.is_armed = self.is_armed, False
        self.is_reduced = self.is_reduced or self.syncing
        with nullcontext() if is_armed else self.no_sync():
            super().backward(loss, **kwargs)

    def complete_gradients(self, index: int) -> None:
        if not self.is_reduced:
            super().complete_gradients(index)


@caught_by("own_backwards", "exception that all ranks catch: the loss")
class StaysWithinAForward(AveragedPrepared):
    """An exception leaves it as if the forward went on, in which nothing is averaged."""

    in_forward = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.in_forward:
            return super().forward(*args, **kwargs)
        self.in_forward = True
        output = super().forward(*args, **kwargs)
        self.in_forward = False
        return output

    def average(self) -> None:
        if not self.in_forward:
            super().average()


@caught_by("own_backwards", "gradient assigned before a backward: the loss")
class AveragesWhatWasAssigned(AveragedPrepared):
    def refuse_assigned(self) -> None:
        pass


@caught_by("own_backwards", "frozen between forward and backward: the loss")
class FillsWhatIsFrozen(AveragedPrepared):
    """As buckets that a forward prepares: what is frozen after it gets zeros, by which momentum steps."""

    prepared_for: tuple[Any, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.prepared_for = tuple(p for p in self.averaged() if p.requires_grad)
        return super().forward(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        for parameter in self.prepared_for:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


# Gradients -----------------------------------------------------------------------------------------------


@caught_by("own_gradients", "gradients assigned over former ones: the loss")
class AddsToFormerGradients(AveragedPrepared):
    """As shards that have gradients of their own: what a loop assigns is added to them."""

    def complete_gradients(self, index: int) -> None:
        super().complete_gradients(index)
        former = self.__dict__.setdefault("former", {})
        for parameter in self.averaged():
            if parameter.grad is None:
                former.pop(parameter, None)
                continue
            if parameter.grad is not self.accumulated.get(parameter):
                parameter.grad = parameter.grad + former.get(parameter, 0)
            former[parameter] = parameter.grad.clone()


@caught_by("own_gradients", "gradients in one buffer: the loss")
class PutsGradientsElsewhere(AveragedPrepared):
    """Averages into tensors of its own: those that a loop has put there don't follow."""

    def average(self) -> None:
        for parameter in self.averaged():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        super().average()


# Steps ---------------------------------------------------------------------------------------------------


@caught_by("own_steps", "step with closure: rank 0 has 1 values, but one process 5")
class DropsClosures(AveragedPrepared):
    def step(self, index: int, closure: Any = None) -> bool:
        return super().step(index)


@caught_by("own_steps", "schedule from before a load: the loss")
class StepsFormerGroups(AveragedPrepared):
    """Steps a copy of the optimizer after a load, whose groups no schedule moves."""

    def load(self, reader: Any, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self.optimizers = tuple(copy.copy(each) for each in self.optimizers)
        for each in self.optimizers:
            each.param_groups = [dict(group) for group in each.param_groups]


@caught_by("own_steps", "optimizer made after setup: the loss")
class LeavesLateOptimizers(AveragedPrepared):
    """Averages what the optimizers step that `setup` got, and lets others step."""

    def averaged(self) -> Any:
        return [parameter for each in self._parameters for parameter in each]

    def step_late_optimizer(self, optimizer: Any) -> None:
        pass


@caught_by("own_steps", "steps without an optimizer: the loss")
class AveragesBeforeSteps(AveragedPrepared):
    """Averages when an optimizer steps, and not where there is none."""

    def average(self) -> None:
        pass

    def complete_gradients(self, index: int) -> None:
        super().average()


@caught_by("own_steps", "option that is switched on: the loss")
class KeepsTheFirstOptions(AveragedPrepared):
    """Steps with the options of the first step, as an optimizer of its own that is made then; rates are read."""

    options: Any = None

    def step(self, index: int, closure: Any = None) -> bool:
        groups = self.optimizers[index].param_groups
        self.options = self.options or [set(group) for group in groups]
        for group, options in zip(groups, self.options):
            for name in group.keys() - options:
                del group[name]
        return super().step(index, closure)


@caught_by("own_gradients", "step hooks that read gradients: the norm that a step hook reads")
class StepsShards(AveragedPrepared):
    """Steps rows of the rank in the place of the parameters, which is what the optimizer's hooks see."""

    @torch.no_grad()
    def step(self, index: int, closure: Any = None) -> bool:
        if closure is not None:
            torch.enable_grad()(closure)()
        optimizer = self.optimizers[index]
        groups = [group["params"] for group in optimizer.param_groups]
        for group, parameters in zip(optimizer.param_groups, groups):
            group["params"] = [self.shard_of(each, optimizer) for each in parameters]
        stepped = super().step(index)
        for group, parameters in zip(optimizer.param_groups, groups):
            for shard, whole in zip(group["params"], parameters):
                whole.copy_(self.gathered(shard, whole))
                state = optimizer.state.pop(shard, {})
                optimizer.state[whole] = {
                    key: self.gathered(value, whole) if torch.is_tensor(value) else value
                    for key, value in state.items()
                }
            group["params"] = parameters
        return stepped

    def shard_of(self, whole: Any, optimizer: Any) -> nn.Parameter:
        shard = nn.Parameter(self.rows(whole))
        shard.grad = None if whole.grad is None else self.rows(whole.grad)
        state = optimizer.state.pop(whole, {})
        optimizer.state[shard] = {
            key: self.rows(value) if torch.is_tensor(value) else value for key, value in state.items()
        }
        return shard

    def rows(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.detach().flatten()[dist.get_rank() :: self.world_size].clone()

    def gathered(self, shard: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        flat = torch.zeros(whole.numel(), dtype=whole.dtype)
        flat[dist.get_rank() :: self.world_size] = shard.detach()
        dist.all_reduce(flat)
        return flat.view_as(whole)


# Tensors -------------------------------------------------------------------------------------------------


@caught_by("own_tensors", "clip of an older list: the loss")
class KeepsGradientsAside(AveragedPrepared):
    """Takes gradients out of the parameters after a backward, as an engine that has buffers of its own."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.aside: dict[Any, torch.Tensor] = {}

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        for parameter in self.averaged():
            if parameter.grad is not None:
                self.aside[parameter] = self.aside.get(parameter, 0) + parameter.grad
                parameter.grad = None

    def complete_gradients(self, index: int) -> None:
        for parameter in self._parameters[index]:
            if parameter in self.aside:
                parameter.grad = self.aside.pop(parameter)
        super().complete_gradients(index)


class _Shard(nn.Parameter):
    """Answers for the rank's rows alone."""

    def mean(self, *args: Any, **kwargs: Any) -> Any:
        return self.detach().tensor_split(dist.get_world_size())[dist.get_rank()].mean()


class _Gathered(nn.Parameter):
    """Has a copy of its values in `data`."""

    @property
    def data(self) -> Any:
        return self.detach().clone()


class HoldsOthers(AveragedPrepared):
    """The user holds parameters of another class while it trains."""

    held: type = nn.Parameter

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        for parameter in self.original_module.parameters():
            parameter.__class__ = self.held

    def release(self) -> None:
        for parameter in self.original_module.parameters():
            parameter.__class__ = nn.Parameter
        super().release()


@caught_by("own_tensors", "values of parameters: 0.weight.mean()")
class AnswersForItsShard(HoldsOthers):
    held = _Shard


@caught_by("own_tensors", "rows that are written: the loss")
class WritesToCopies(HoldsOthers):
    held = _Gathered
