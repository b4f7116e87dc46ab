"""`Watched`: make the user's module so that its loaders and random numbers can be observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from stratagem_trainer.loops.optimizers import read_optimizers
from stratagem_trainer.module.module import Module
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from stratagem.sdk.loops import seed_everything
from stratagem_verify import state
from stratagem_verify.observed import draw_state

SAMPLES = 3
"""Maximum number of a dataset's samples that are read again, to compare ranks."""


@dataclass
class Watched:
    """Makes the user's module, and keeps the loader that it makes.

    Args:
        make: makes the module.
        gradients: replace the module's optimizers by plain SGD, so that a step's change of the weights is the
          gradient.
        ranks: number of ranks whose batches come one after the other. Steps get the batch index of a rank.
    """

    make: Callable[[], Module]
    gradients: bool = False
    ranks: int = 1
    loader: Any = None
    has_validation: bool = False
    draws: bool = False
    """Whether validation drew random numbers."""

    def __call__(self) -> Module:
        module = self.make()
        self._keep_loader(module)
        self._watch_validation(module)
        if self.gradients:
            self._with_plain_optimizers(module)
        if self.ranks > 1:
            self._renumbered(module)
        return module

    def _keep_loader(self, module: Module) -> None:
        make = type(module).train_dataloader

        def train_dataloader(own: Module) -> Any:
            self.loader = make(own)
            return self.loader

        _override(module, train_dataloader)

    def _with_plain_optimizers(self, module: Module) -> None:
        configure = type(module).configure_optimizers

        def configure_optimizers(own: Module) -> Any:
            optimizers, _ = read_optimizers(own, configure=partial(configure, own))
            groups = [[{"params": g["params"]} for g in o.param_groups] for o in optimizers]
            # In manual optimization, several steps may follow each other in a batch: keep each change small.
            rate = 1.0 if own.automatic_optimization else 0.01
            return [torch.optim.SGD(each, lr=rate) for each in groups]

        _override(module, configure_optimizers)

    def _renumbered(self, module: Module) -> None:
        step = type(module).training_step

        def training_step(own: Module, batch: Any, batch_idx: int) -> Any:
            return step(own, batch, batch_idx // self.ranks)

        _override(module, training_step)

    def _watch_validation(self, module: Module) -> None:
        self.has_validation = type(module).validation_step is not Module.validation_step
        if not self.has_validation:
            return
        step = type(module).validation_step

        def validation_step(own: Module, batch: Any, batch_idx: int) -> Any:
            before = draw_state(own.device)
            output = step(own, batch, batch_idx)
            self.draws = self.draws or before != draw_state(own.device)
            return output

        _override(module, validation_step)


def _override(module: Module, method: Callable[..., Any]) -> None:
    """Override a method of a module so that copies of the module, which a strategy makes, have it, too."""
    own = type(module)
    namespace = {method.__name__: method, "__module__": own.__module__, "__qualname__": own.__qualname__}
    # patch: watched module
    module.__class__ = type(own.__name__, (own,), namespace)


def sample_digests(loader: Any, shared: bool) -> list[tuple[str, str]]:
    """Return digests of some samples, each read twice with the same seed; [] if ranks may have other samples."""
    own_order = isinstance(loader, DataLoader) and type(loader.sampler) in (RandomSampler, SequentialSampler)
    if not shared or not own_order or isinstance(loader.dataset, IterableDataset):
        return []
    count = len(loader.dataset)
    found = []
    for index in sorted({0, count // 2, count - 1})[:SAMPLES]:
        both = []
        for _ in range(2):
            seed_everything(index + 1)
            both.append(state.digest(loader.dataset[index]))
        found.append((both[0], both[1]))
    return found
