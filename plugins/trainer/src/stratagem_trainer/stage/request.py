"""What a stage is asked for, and what it brings back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem_trainer.stage.collect_results import Destination
from stratagem_trainer.stage.last_stage import LastStage


@dataclass(frozen=True)
class StageRequest:
    """What a call of the trainer asks for; picklable if the module and the loaders are."""

    stage: str
    module: Any
    """A `Module`, or a callable without arguments that makes one in each worker."""
    loader: Any = None
    val_loader: Any = None
    datamodule: Any = None
    """A `DataModule`, or a callable without arguments that makes one in each worker."""
    ckpt_path: str | None = None
    destination: Destination | None = None
    """Where to leave the trained state for a launching process that isn't a rank itself."""
    return_predictions: bool = True
    began: float = 0.0
    """When the run began, in seconds since the epoch."""


@dataclass(frozen=True)
class StageResult:
    """What rank 0 brings back."""

    metrics: list[dict[str, float]]
    """Of an evaluation, one for each loader."""
    last: LastStage
    """What the launching process's trainer then says."""
    in_launching_process: bool
    """Whether the module that the trainer was given is the one that was used."""
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    loggers: Sequence[dict[str, Any]] = ()
    """What each of the loggers that the trainer was given adds to, in their order."""
    predictions: list[Any] | None = None
    not_brought_back: str | None = None
    """Why the trained state isn't at the request's destination."""
