"""Types for annotations, under Lightning's names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

STEP_OUTPUT = torch.Tensor | Mapping[str, Any] | None
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
# Private in Lightning, but libraries import it for their annotations.
_PATH = str | os.PathLike[str]
_MAP_LOCATION_TYPE = Any
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau


@dataclass
class LRSchedulerConfig:
    """A scheduler and when it steps."""

    scheduler: LRSchedulerTypeUnion
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class LRSchedulerConfigType(TypedDict, total=False):
    """The same as a dict, which `configure_optimizers` may return."""

    scheduler: LRSchedulerTypeUnion
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool


class OptimizerConfig(TypedDict):
    """An optimizer without a scheduler."""

    optimizer: torch.optim.Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """An optimizer and its scheduler."""

    optimizer: torch.optim.Optimizer
    lr_scheduler: LRSchedulerTypeUnion | LRSchedulerConfigType


OptimizerLRScheduler = (
    torch.optim.Optimizer
    | Sequence[torch.optim.Optimizer]
    | tuple[Sequence[torch.optim.Optimizer], Sequence[Any]]
    | OptimizerConfig
    | OptimizerLRSchedulerConfig
    | Sequence[OptimizerLRSchedulerConfig]
    | None
)
