"""Strategies that do one thing wrong where a run stops, or begins with what another one saved."""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist
from averaging import AveragedPrepared
from planting import caught_by
from torch import nn

from stratagem.data import worker_seeds


@caught_by("preemption", "something else handles that signal")
class StealsSignals(AveragedPrepared):
    """As an engine that has its own use for a signal."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        signal.signal(signal.SIGUSR1, lambda number, frame: None)


@caught_by("preemption", "and continued: the loss of micro-batch", own_processes=True)
class SeedsWorkersOnce(AveragedPrepared):
    """Loaders' workers are seeded when they start, as torch does; for processes of its own."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        worker_seeds.seeds_workers = lambda loader: False


@caught_by("initial_weights", "the loss of micro-batch 1 is")
class KeepsMasters(AveragedPrepared):
    """Steps copies of the parameters, which it makes when it begins and when a run goes on, not of weights alone."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.keep()

    def keep(self) -> None:
        self.masters = [parameter.detach().clone() for parameter in self.original_module.parameters()]

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self.keep()

    def step(self, index: int, closure: Any = None) -> bool:
        with torch.no_grad():
            for parameter, master in zip(self.original_module.parameters(), self.masters):
                parameter.copy_(master)
        stepped = super().step(index, closure)
        self.keep()
        return stepped

    steps_directly = False


# What a load loses ----------------------------------------------------------------------------------------


class _Loads(AveragedPrepared):
    """Does something after what a load of a whole run is to do."""

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self.after_load()

    def after_load(self) -> None:
        raise NotImplementedError


@caught_by("state_of_every_kind", "continued after step 1")
class UntiesOnLoad(_Loads):
    def after_load(self) -> None:
        seen = set()
        for module in self.original_module.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in seen:
                    setattr(module, name, nn.Parameter(parameter.detach().clone()))
                seen.add(parameter)


@caught_by("state_of_every_kind", "continued after step 1")
class LosesExtraState(AveragedPrepared):
    def state(self) -> dict[str, Any]:
        return {**super().state(), "extra": {}}


@caught_by("state_of_every_kind", "continued after step 1")
class KeepsPythonStatesOnTheFirstRank(_Loads):
    """States of optimizers that are no tensors are lost on the other ranks."""

    def after_load(self) -> None:
        for optimizer in self.optimizers if dist.get_rank() else ():
            for state in optimizer.state.values():
                for name in [name for name, value in state.items() if not torch.is_tensor(value)]:
                    del state[name]


@caught_by("scaled_steps", "ends with the scaler's state")
class LosesTheScale(AveragedPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, {**state, "precision": {}}, model_only=model_only)


@caught_by("state_of_every_kind", "continued after step 1")
class LosesFirstMomenta(AveragedPrepared):
    """The first step's momenta aren't in its checkpoint: those come with the second one."""

    steps = 0

    def step(self, index: int, closure: Any = None) -> bool:
        self.steps += 1
        return super().step(index, closure)

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        tensors = super().optimizer_tensors()
        return (
            {key: torch.zeros_like(value) for key, value in tensors.items()} if self.steps == 1 else tensors
        )
