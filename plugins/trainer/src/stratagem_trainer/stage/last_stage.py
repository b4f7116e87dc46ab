"""`LastStage`: the results of a stage that the launching process keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_trainer.stage.progress import Progress


@dataclass(frozen=True)
class LastStage:
    """Values of a trainer's attributes after its last stage, from rank 0. Picklable."""

    stage: str | None = None
    """"fit", "validate", "test" or "predict"; None before the first."""
    status: str = "initializing"
    """ "initializing", "finished" or "interrupted"."""
    progress: Progress = field(default_factory=Progress)
    latest: dict[str, float] = field(default_factory=dict)
    """The latest value of each logged key."""
    logged: dict[str, float] = field(default_factory=dict)
    """The latest values that loggers got."""
    on_bar: dict[str, float] = field(default_factory=dict)
    """The latest values that were logged with `prog_bar`."""
    train_batches: int | None = None
    """Training batches per epoch and rank; None if unknown."""
    eval_batches: dict[str, list[int | None]] = field(default_factory=dict)
    """Stage → batches per rank of each loader; None for a loader of unknown length."""
    run_dir: str | None = None
    world_size: int = 1
    was_stopped: bool = False
    """Whether a fit was stopped before its limits."""
