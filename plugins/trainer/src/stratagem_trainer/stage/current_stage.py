"""`CurrentStage`: the running stage of a trainer in one process, or the results of the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from stratagem_trainer.stage.ended import EndedState
from stratagem_trainer.stage.last_stage import LastStage
from stratagem_trainer.stage.progress import Progress

if TYPE_CHECKING:
    from stratagem import Runtime
    from stratagem_trainer.data.fit_data import FitData
    from stratagem_trainer.stage.state import StageState


class CurrentStage:
    """The stage that runs in this process, or the results of the last one.

    `enter` begins a stage, `live` is set when its objects are built, and `leave` ends it. A launching process that
    isn't a rank runs no stage: there, the properties return values from `last`.

    When a trainer is pickled for workers, only `last` is pickled.

    Attributes:
        runtime: of the running stage; None if none runs.
        live: objects of the running stage; None until they are built.
        last: results of the last stage. Its attribute `stage` is the running stage, if one runs.
        fit_data: the loaders of the running fit.
        eval_loaders: stage → the loader or loaders of the running evaluation, as the user passed or made them.
    """

    def __init__(self, last: LastStage | None = None) -> None:
        self.last = last or LastStage()
        self.runtime: Runtime | None = None
        self.live: StageState | None = None
        self.fit_data: FitData | None = None
        self.eval_loaders: dict[str, Any] = {}
        self._begins_at = Progress()

    # From a stage's beginning to its end ------------------------------------------------------------

    def enter(self, runtime: Runtime) -> None:
        """Begin a stage in this process."""
        self.runtime = runtime
        self._begins_at = Progress() if self.last.stage == "fit" else replace(self.last.progress)

    def begin_at(self, epoch: int) -> None:
        """Set the epoch at which a resumed fit begins, before its loaders are made."""
        self._begins_at = Progress(epoch=epoch)

    def leave(self) -> None:
        """End the stage in this process."""
        self.live = self.runtime = self.fit_data = None
        self.eval_loaders = {}

    def result(self, run_dir: str | None) -> LastStage:
        """Return the results that the trainer in the launching process gets. Called at the end of the stage."""
        live = self.live
        assert live is not None
        return LastStage(
            live.stage,
            "finished",
            live.progress,
            live.metrics.latest(),
            live.metrics.logged(),
            live.metrics.on_bar(),
            live.num_train_batches,
            live.eval_batches,
            run_dir,
            self.world_size,
            live.should_stop,
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(CurrentStage(self.last))

    # Attributes of the trainer -------------------------------------------------------------------------

    @property
    def state(self) -> StageState:
        """The running stage's objects. Without them, an `EndedState` with `fn`, `stage`, `status` and `finished`.

        Raises:
            StratagemError: another attribute of the `EndedState` is read.
        """
        if self.live is None:
            status = self.last.status if self.runtime is None else "running"
            return cast("StageState", EndedState(self.last.stage, status))
        return self.live

    @property
    def progress(self) -> Progress:
        """The current epoch, batch and step."""
        if self.live is not None:
            return self.live.progress
        return self._begins_at if self.runtime is not None else self.last.progress

    @property
    def running(self) -> str | None:
        """What runs: "train", "validate", "test", "predict" or "sanity_check"; None if no stage runs."""
        if self.live is not None:
            return self.live.running
        if self.runtime is None:
            return None
        return "train" if self.last.stage == "fit" else self.last.stage

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after the current step; after a fit, whether it was stopped before its limits."""
        if self.live is not None:
            return self.live.should_stop
        return self.runtime is None and self.last.was_stopped

    @property
    def num_training_batches(self) -> int | None:
        """Micro-batches per epoch and rank; None if unknown."""
        if self.live is None and self.fit_data is None:
            return self.last.train_batches
        number = self.live.num_train_batches if self.live is not None else None
        return self.fit_data.num_train_batches if number is None and self.fit_data is not None else number

    def num_eval_batches(self, stage: str) -> list[int | None]:
        """Batches per rank of each loader of a stage; None for a loader of unknown length."""
        known = self.live.eval_batches if self.live is not None else self.last.eval_batches
        return known.get(stage, [])

    @property
    def world_size(self) -> int:
        """Number of ranks of the running stage, or else of the last one; 1 before the first."""
        return self.runtime.world_size if self.runtime is not None else self.last.world_size
