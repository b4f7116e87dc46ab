"""`CurrentStage`: the life of a trainer's stage in one process."""

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
    """The stage that runs in this process, or what the last one has left.

    A stage is entered when its process has a runtime, live when its objects are made, and over when it is left. In
    the launching process, and in one that isn't a rank, none runs, and `last` answers.

    It goes to workers with its trainer, as what the last stage has left alone.

    Attributes:
        runtime: of the stage that runs; None where none does.
        live: its objects; None before they are made.
        last: what the last stage has left; its `stage` is the name of the one that runs.
        fit_data: the loaders of the fit that runs.
        eval_loaders: stage → the loader of the evaluation that runs, or several, as they were given or made.
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
        """Say which epoch a continued fit begins with, before its loaders are made."""
        self._begins_at = Progress(epoch=epoch)

    def leave(self) -> None:
        """End the stage in this process."""
        self.live = self.runtime = self.fit_data = None
        self.eval_loaders = {}

    def result(self, run_dir: str | None) -> LastStage:
        """Return what the launching process's trainer is to say of this stage, at the end of it."""
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

    # What it says -----------------------------------------------------------------------------------

    @property
    def state(self) -> StageState:
        """Its objects; `fn`, `stage`, `status` and `finished` of the last one where none is live.

        Raises:
            StratagemError: (of any other attribute) no stage runs in this process, or it hasn't come that far.
        """
        if self.live is None:
            status = self.last.status if self.runtime is None else "running"
            return cast("StageState", EndedState(self.last.stage, status))
        return self.live

    @property
    def progress(self) -> Progress:
        """Epoch, batch and step."""
        if self.live is not None:
            return self.live.progress
        return self._begins_at if self.runtime is not None else self.last.progress

    @property
    def running(self) -> str | None:
        """What runs: "train", "validate", "test", "predict" or "sanity_check"; None where nothing does."""
        if self.live is not None:
            return self.live.running
        if self.runtime is None:
            return None
        return "train" if self.last.stage == "fit" else self.last.stage

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after the current step, or was ended so."""
        if self.live is not None:
            return self.live.should_stop
        return self.runtime is None and self.last.was_stopped

    @property
    def num_training_batches(self) -> int | None:
        """Micro-batches per epoch and rank, where known."""
        if self.live is None and self.fit_data is None:
            return self.last.train_batches
        number = self.live.num_train_batches if self.live is not None else None
        return self.fit_data.num_train_batches if number is None and self.fit_data is not None else number

    def num_eval_batches(self, stage: str) -> list[int | None]:
        """Batches per rank of each loader of a stage, where known."""
        known = self.live.eval_batches if self.live is not None else self.last.eval_batches
        return known.get(stage, [])

    @property
    def world_size(self) -> int:
        """Ranks of the stage that runs, or else of the last one; 1 before any."""
        return self.runtime.world_size if self.runtime is not None else self.last.world_size
