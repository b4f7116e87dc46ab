"""`StageRequest`, the input of a stage in the workers, and `StageResult`, its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem_trainer.stage.collect_results import Destination
from stratagem_trainer.stage.last_stage import LastStage


@dataclass(frozen=True)
class StageRequest:
    """The arguments of a call of `Trainer`; picklable if the module and the loaders are."""

    stage: str
    module: Any
    """A `Module`, or a callable without arguments that makes one in each worker."""
    loader: Any = None
    val_loader: Any = None
    datamodule: Any = None
    """A `DataModule`, or a callable without arguments that makes one in each worker."""
    ckpt_path: str | None = None
    destination: Destination | None = None
    """Where to write the trained state, for a launching process that isn't a rank itself."""
    return_predictions: bool = True
    began: float = 0.0
    """When the run began, in seconds since the epoch."""


@dataclass(frozen=True)
class StageResult:
    """The results of a stage, from rank 0."""

    metrics: list[dict[str, float]]
    """Metrics of an evaluation, one dict for each loader; of a fit, one dict with the latest values."""
    last: LastStage
    """Values of the launching process's trainer attributes."""
    in_launching_process: bool
    """Whether the stage ran in the launching process, with the module that the user passed."""
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    loggers: Sequence[dict[str, Any]] = ()
    """State of each of the user's loggers, in order."""
    predictions: list[Any] | None = None
    not_copied_back: str | None = None
    """The reason why the trained state isn't at the request's destination; None if it is."""
