"""`ProgressBar`: show the progress of a run on rank 0."""

from __future__ import annotations

import math
import os
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count
from stratagem_trainer.callbacks.progress_screen import Screen

if TYPE_CHECKING:
    from rich.console import Console

    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class ProgressBar(Callback):
    """Show epochs and evaluations, with their speed and the values logged with `prog_bar`.

    A terminal shows a bar, and another one below it for a validation. Each epoch leaves a line, except epochs that
    are shorter than the time between two redrawings. A notebook's cell shows bars if ipywidgets is installed and the
    run starts no processes. Elsewhere, as in a file or a pipe, each epoch and each evaluation outside of a fit prints
    one line of plain text. Only rank 0 shows anything. Between two redrawings, a batch costs one look at the clock.

    Override `get_metrics` to show other values than those logged with `prog_bar`.

    Args:
        refresh_per_s: maximum number of redrawings per second.
        console: a `rich.console.Console` to draw on; by default standard output.
        refresh_rate: minimum number of batches between two redrawings; 0 shows nothing.
        leave: whether the bar stays on a terminal when a stage ends.

    Raises:
        ConfigError: `refresh_per_s` isn't above 0, or `refresh_rate` is below 0.
    """

    def __init__(
        self,
        refresh_per_s: float = 4.0,
        console: Console | None = None,
        refresh_rate: int = 1,
        leave: bool = False,
    ) -> None:
        check_count("ProgressBar", "refresh_rate", refresh_rate, 0)
        if not (math.isfinite(refresh_per_s) and refresh_per_s > 0):
            raise ConfigError(f"ProgressBar got refresh_per_s={refresh_per_s!r}; pass a number above 0")
        self._given_console, self._made_in = console, os.getpid()
        self.refresh_rate, self.leave = refresh_rate, leave
        self._period_s = 1.0 / refresh_per_s
        # When to draw next; infinity if there is no bar.
        self._due = math.inf
        self._screen: Screen | None = None
        self._batches = self._evaluated = 0

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        """Return what the bar shows: name → number or text. Called on rank 0. Waits for the device."""
        return dict(trainer.progress_metrics())

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._close()
        if not trainer.is_main or not self.refresh_rate:
            return
        from rich.console import Console

        console = self._given_console or Console()
        if console.is_jupyter and self._given_console is None:
            console = Console(
                color_system=None
            )  # so that the plain text that a saved cell also has is free of escape codes
        self._screen = Screen(console, stage, self.get_metrics, is_worker=os.getpid() != self._made_in)
        self._batches = self._evaluated = 0
        if self._screen.bars is not None:
            self._due = 0.0

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._screen is not None and self._batches:
            # The fit was stopped in the middle of an epoch, for which on_train_epoch_end isn't called.
            self._screen.end_epoch(trainer, module, self._period_s, is_last=True)
        self._close(stays=self.leave)

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        self._close(stays=True)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        self._batches = 0
        if self._screen is not None:
            self._screen.start_epoch()

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches = batch_idx + 1
        if perf_counter() >= self._due and self._batches % self.refresh_rate == 0:
            assert self._screen is not None
            self._screen.draw_epoch(trainer, module, self._batches, batch)
            self._due = perf_counter() + self._period_s

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        self._batches = 0
        if self._screen is not None:
            is_last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
            self._screen.end_epoch(trainer, module, self._period_s, is_last)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._evaluated = 0
        if self._screen is not None:
            self._screen.start_evaluation()

    def on_evaluation_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        self._evaluated += 1
        if perf_counter() >= self._due and self._evaluated % self.refresh_rate == 0:
            assert self._screen is not None
            self._screen.draw_evaluation(trainer, stage, self._evaluated, batch)
            self._due = perf_counter() + self._period_s

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._screen is not None:
            self._screen.end_evaluation(trainer, module, stage, self._evaluated)

    def __getstate__(self) -> dict[str, Any]:
        # A console belongs to its process.
        return {**self.__dict__, "_given_console": None, "_screen": None, "_due": math.inf}

    def _close(self, stays: bool = False) -> None:
        self._due = math.inf
        if self._screen is not None:
            self._screen.close(stays)
            self._screen = None


class RichProgressBar(ProgressBar):
    """`ProgressBar` with the arguments of Lightning's class of this name.

    Args:
        refresh_rate: minimum number of batches between two redrawings; 0 shows nothing.
        leave: whether the bar stays.
        theme: accepted and ignored.
        console_kwargs: arguments of the `rich.console.Console`.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=leave)
        self._console_kwargs = console_kwargs

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._console_kwargs and self._given_console is None:
            from rich.console import Console

            self._given_console = Console(**self._console_kwargs)
        super().on_start(trainer, module, stage)


class TQDMProgressBar(ProgressBar):
    """`ProgressBar` with the arguments of Lightning's class of this name. It draws with rich, too.

    Args:
        refresh_rate: minimum number of batches between two redrawings; 0 shows nothing.
        process_position: accepted and ignored: only rank 0 shows a bar.
        leave: whether the bar stays.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=leave)
