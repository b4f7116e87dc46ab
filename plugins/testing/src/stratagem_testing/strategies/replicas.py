"""Replicas of parameters don't diverge unnoticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor

from stratagem.errors import ReplicaError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


@dataclass
class _Drift(Callback):
    """Changes a parameter on one rank only, and keeps the ranks' full parameters at the end."""

    at_batch: int = 2
    drifted: bool = False
    whole: dict[str, Tensor] | None = None

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.at_batch and not _is_sharded(trainer, module):
            for parameter in _whole(module).values():
                self.drifted = True
                if trainer.global_rank == 1:
                    parameter.data.add_(0.5)

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        if not _is_sharded(trainer, module):
            self.whole = {name: p.detach().cpu().clone() for name, p in _whole(module).items()}


def _is_sharded(trainer: Trainer, module: Module) -> bool:
    """Return whether the module's parameters are shards, though their type doesn't show it."""
    is_visible = any(hasattr(parameter, "placements") for parameter in module.parameters())
    return trainer.prepared.leaves_module_sharded and not is_visible


def _whole(module: Module) -> dict[str, Tensor]:
    """Return the parameters that this rank has in full."""
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if not hasattr(parameter, "placements") and not parameter.is_meta and parameter.numel()
    }


@check(world_sizes=(2,))
def check_replicas_are_compared(subject: StrategySubject) -> None:
    """A parameter that is changed on one rank only ends the run, unless the strategy makes it equal again."""
    if subject.processes() < 2:
        raise NotApplicable("its run is one process")
    by_rank = subject.run(_drift)
    for rank, (drifted, error, _) in enumerate(by_rank):
        expect(drifted or not error, f"rank {rank} reports a difference, but there is none: {error}")
    if not any(drifted for drifted, _, _ in by_rank):
        raise NotApplicable("no rank has a replica of another rank's parameters")
    if any(error for _, error, _ in by_rank):
        expect(
            all("parameter" in error and "rank" in error for _, error, _ in by_rank),
            f"ranks raise {[error for _, error, _ in by_rank]}; each must name what differs and the rank",
        )
        return
    (_, _, first), *others = by_rank
    for rank, (_, _, whole) in enumerate(others, 1):
        both = first.keys() & whole.keys()
        differing = sorted(name for name in both if not torch.equal(first[name], whole[name]))
        expect(
            not differing,
            f"rank {rank} has other values of {differing} than rank 0 at the end, but nothing was reported: "
            "Prepared.replicas doesn't yield them",
        )


def _drift(subject: StrategySubject) -> tuple[bool, str, dict[str, Tensor]]:
    callback = _Drift()
    try:
        train(subject, Recipe(steps=6), [callback], check_replicas_every=1)
    except ReplicaError as error:
        return callback.drifted, str(error), {}
    return callback.drifted, "", callback.whole or {}
