"""`ProgressBar`: shows on rank 0 how far a run is."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.progress_text import duration_text, metrics_text

if TYPE_CHECKING:
    from rich.console import Console

    from stratagem_trainer.callbacks.live_bars import LiveBars, Rate
    from stratagem_trainer.module import Module
    from stratagem_trainer.view import TrainerView


class ProgressBar(Callback):
    """Show epochs and evaluations, with their rate and the values logged with `prog_bar`.

    On a terminal there is a bar, and one below it for a validation; each epoch leaves a line, save
    those that fly by faster than the bar is redrawn. Anywhere else, as in a file or a pipe, each epoch
    and each evaluation that isn't part of a fit writes one line of plain text. Rank 0 alone shows
    anything. Between two redrawings a batch costs one look at the clock.

    Args:
        refresh_per_s: redrawings per second, at most.
        console: a `rich.console.Console` to draw on; by default standard output.

    Raises:
        ConfigError: `refresh_per_s` isn't above 0.
    """

    def __init__(self, refresh_per_s: float = 4.0, console: Console | None = None) -> None:
        if not (math.isfinite(refresh_per_s) and refresh_per_s > 0):
            raise ConfigError(f"ProgressBar got refresh_per_s={refresh_per_s!r}; give a number above 0")
        self._given_console = console
        self._period_s = 1.0 / refresh_per_s
        # When to draw next; never, where there is no bar.
        self._due = math.inf
        self._screen: _Screen | None = None
        self._batches = self._evaluated = 0

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._close()
        if not trainer.is_main:
            return
        from rich.console import Console

        console = self._given_console or Console()
        self._screen = _Screen(console, stage)
        self._batches = self._evaluated = 0
        if self._screen.bars is not None:
            self._due = 0.0

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._screen is not None and self._batches:
            # Stopped within an epoch, which then has no end.
            self._screen.end_epoch(trainer, self._period_s, is_last=True)
        self._close()

    def on_exception(self, trainer: TrainerView, module: Module, error: BaseException) -> None:
        self._close(failed=True)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        self._batches = 0
        if self._screen is not None:
            self._screen.start_epoch(trainer)

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches = batch_idx + 1
        if perf_counter() >= self._due:
            self._draw_epoch(trainer)

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        self._batches = 0
        if self._screen is not None:
            is_last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
            self._screen.end_epoch(trainer, self._period_s, is_last)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._evaluated = 0
        if self._screen is not None:
            self._screen.start_evaluation()

    def on_evaluation_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        self._evaluated += 1
        if perf_counter() >= self._due:
            self._draw_evaluation(trainer, stage)

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._screen is not None:
            self._screen.end_evaluation(trainer, stage, self._evaluated)

    def __getstate__(self) -> dict[str, Any]:
        # What draws belongs to its process.
        return {**self.__dict__, "_given_console": None, "_screen": None, "_due": math.inf}

    def _draw_epoch(self, trainer: TrainerView) -> None:
        assert self._screen is not None
        self._screen.draw_epoch(trainer, self._batches)
        self._due = perf_counter() + self._period_s

    def _draw_evaluation(self, trainer: TrainerView, stage: str) -> None:
        assert self._screen is not None
        self._screen.draw_evaluation(trainer, stage, self._evaluated)
        self._due = perf_counter() + self._period_s

    def _close(self, failed: bool = False) -> None:
        self._due = math.inf
        if self._screen is not None:
            self._screen.close(failed)
            self._screen = None


class _Screen:
    """What rank 0 writes on: a terminal with bars, or plain lines."""

    def __init__(self, console: Console, stage: str) -> None:
        from stratagem_trainer.callbacks.live_bars import LiveBars, Rate

        self.bars: LiveBars | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self.bars = LiveBars(console)
        self._console = console
        self._stage = stage
        self._rate: Rate = Rate()
        self._evaluation_rate: Rate = Rate()
        self._epoch_began = self._evaluation_began = perf_counter()
        self._line_written = -math.inf

    def start_epoch(self, trainer: TrainerView) -> None:
        self._epoch_began = perf_counter()
        self._rate.look(self._epoch_began, trainer.global_step)

    def draw_epoch(self, trainer: TrainerView, batches: int) -> None:
        if self.bars is not None:
            from stratagem_trainer.callbacks.live_bars import Bar

            rate = self._rate.look(perf_counter(), trainer.global_step)
            metrics = metrics_text(trainer.progress_metrics())
            title = _epoch_title(trainer)
            self.bars.draw("epoch", Bar(title, batches, trainer.num_train_batches, rate, "steps", metrics))

    def end_epoch(self, trainer: TrainerView, period_s: float, is_last: bool) -> None:
        now = perf_counter()
        # Epochs that fly by would drown a terminal in lines.
        if self.bars is not None and not is_last and now - self._line_written < period_s:
            return
        self._line_written = now
        took = duration_text(now - self._epoch_began)
        self._write(f"{_epoch_title(trainer)}  step {trainer.global_step}  {took}", trainer)

    def start_evaluation(self) -> None:
        self._evaluation_began = perf_counter()
        self._evaluation_rate.restart(self._evaluation_began, 0)

    def draw_evaluation(self, trainer: TrainerView, stage: str, batches: int) -> None:
        if self.bars is not None:
            from stratagem_trainer.callbacks.live_bars import Bar

            rate = self._evaluation_rate.look(perf_counter(), batches)
            self.bars.draw("evaluation", Bar(stage, batches, trainer.num_eval_batches, rate, "batches"))

    def end_evaluation(self, trainer: TrainerView, stage: str, batches: int) -> None:
        now = perf_counter()
        if self._stage == "fit":
            self._rate.restart(now, trainer.global_step)
            if self.bars is not None:
                self.bars.drop("evaluation")
            return
        took = duration_text(now - self._evaluation_began)
        self._write(f"{stage}  {batches} {'batch' if batches == 1 else 'batches'}  {took}", trainer)

    def close(self, failed: bool) -> None:
        if self.bars is not None:
            self.bars.close(stays=failed)

    def _write(self, line: str, trainer: TrainerView) -> None:
        metrics = metrics_text(trainer.progress_metrics() or trainer.callback_metrics)
        line = f"{line}  {metrics}".rstrip()
        if self.bars is not None:
            self.bars.print(line)
        else:
            # Past rich: no wrapping at its idea of a width, and no control characters.
            self._console.file.write(line + "\n")
            self._console.file.flush()


def _epoch_title(trainer: TrainerView) -> str:
    epoch = trainer.current_epoch + 1
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        return f"epoch {epoch}/{trainer.max_epochs}"
    if trainer.max_steps is not None and trainer.max_steps > 0:
        return f"epoch {epoch}, step {trainer.global_step}/{trainer.max_steps}"
    return f"epoch {epoch}"
