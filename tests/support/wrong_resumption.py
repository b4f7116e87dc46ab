"""Strategies that do one thing wrong where a run stops, or begins with what another one saved."""

from __future__ import annotations

import signal
from typing import Any

import torch
from averaging import AveragedPrepared, Averaging
from wrong_strategies import caught_by

from stratagem.data import worker_seeds


@caught_by("preemption", "something else handles that signal")
class StealsSignals(AveragedPrepared):
    """As an engine that has its own use for a signal."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        signal.signal(signal.SIGUSR1, lambda number, frame: None)


class SeedsWorkersOnce(AveragedPrepared):
    """Loaders' workers are seeded when they start, as torch does; for processes of its own."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        worker_seeds.seeds_workers = lambda loader: False


class SeedsWorkersOnceStrategy(Averaging):
    prepared = SeedsWorkersOnce


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
