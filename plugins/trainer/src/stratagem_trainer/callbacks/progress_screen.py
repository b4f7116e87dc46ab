"""`Screen`: where rank 0 shows progress: a terminal with bars, or plain lines."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stratagem_trainer.callbacks.progress_text import duration_text, metrics_text

if TYPE_CHECKING:
    from rich.console import Console

    from stratagem_trainer.callbacks.live_bars import LiveBars, Rate
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class Screen:
    """Draws bars, and writes the lines that stay.

    Args:
        console: the console to draw on.
        stage: "fit", "validate", "test" or "predict".
        metrics: returns the values for an epoch's bar, given the trainer and the module.
        is_worker: whether this is a worker process, which doesn't own the terminal or notebook.
    """

    def __init__(
        self,
        console: Console,
        stage: str,
        metrics: Callable[[Any, Any], dict[str, Any]],
        is_worker: bool = False,
    ) -> None:
        from stratagem_trainer.callbacks.live_bars import LiveBars, Rate

        self.bars: LiveBars | None = None
        in_terminal = console.is_terminal and not console.is_dumb_terminal
        # In a notebook's cell, rich draws with widgets, which only the kernel's own process can update.
        in_cell = console.is_jupyter and not is_worker and find_spec("ipywidgets") is not None
        if in_terminal or in_cell:
            self.bars = LiveBars(console)
        self._console, self._metrics = console, metrics
        self._stage = stage
        self._rate: Rate = Rate()
        self._evaluation_rate: Rate = Rate()
        self._epoch_began = self._evaluation_began = perf_counter()
        self._line_written = -math.inf

    def start_epoch(self) -> None:
        """Note that an epoch begins."""
        self._epoch_began = perf_counter()
        self._rate.restart(self._epoch_began, 0)

    def draw_epoch(self, trainer: TrainerView, module: Module, batches: int, batch: Any) -> None:
        """Draw an epoch's bar after this many batches."""
        if self.bars is not None:
            from stratagem_trainer.callbacks.live_bars import Bar

            rate = self._rate.look(perf_counter(), batches)
            metrics = metrics_text(self._metrics(trainer, module))
            samples = _samples_of_all(trainer, batch)
            bar = Bar(_epoch_title(trainer), batches, trainer.num_train_batches, rate, samples, metrics)
            self.bars.draw("epoch", bar)

    def end_epoch(self, trainer: TrainerView, module: Module, period_s: float, is_last: bool) -> None:
        """Write an epoch's line, unless the last one was written just before."""
        now = perf_counter()
        # Very short epochs would fill a terminal with lines.
        if self.bars is not None and not is_last and now - self._line_written < period_s:
            return
        self._line_written = now
        took = duration_text(now - self._epoch_began)
        self._write(f"{_epoch_title(trainer)}  step {trainer.global_step}  {took}", trainer, module)

    def start_evaluation(self) -> None:
        """Note that an evaluation begins."""
        self._evaluation_began = perf_counter()
        self._evaluation_rate.restart(self._evaluation_began, 0)

    def draw_evaluation(self, trainer: TrainerView, stage: str, batches: int, batch: Any) -> None:
        """Draw an evaluation's bar after this many batches."""
        if self.bars is not None:
            from stratagem_trainer.callbacks.live_bars import Bar

            rate = self._evaluation_rate.look(perf_counter(), batches)
            samples = _samples_of_all(trainer, batch)
            self.bars.draw("evaluation", Bar(stage, batches, trainer.num_eval_batches, rate, samples))

    def end_evaluation(self, trainer: TrainerView, module: Module, stage: str, batches: int) -> None:
        """Write an evaluation's line, unless it is part of a fit."""
        now = perf_counter()
        if self._stage == "fit":
            self._rate.restart(now, trainer.batch_idx)
            if self.bars is not None:
                self.bars.drop("evaluation")
            return
        took = duration_text(now - self._evaluation_began)
        self._write(f"{stage}  {batches} {'batch' if batches == 1 else 'batches'}  {took}", trainer, module)

    def close(self, stays: bool) -> None:
        """Stop drawing; `stays` leaves the bars on the screen."""
        if self.bars is not None:
            self.bars.close(stays=stays)

    def _write(self, line: str, trainer: TrainerView, module: Module) -> None:
        metrics = metrics_text(self._metrics(trainer, module) or trainer.callback_metrics)
        line = f"{line}  {metrics}".rstrip()
        if self.bars is not None:
            self.bars.print(line)
        else:
            # Write to the file directly: rich would wrap lines and add control characters.
            self._console.file.write(line + "\n")
            self._console.file.flush()


def _samples_of_all(trainer: TrainerView, batch: Any) -> int | None:
    from stratagem_sharding.batch_size import batch_size_of

    size = batch_size_of(batch)
    return None if size is None else size * trainer.collectives.data.world_size


def _epoch_title(trainer: TrainerView) -> str:
    epoch = trainer.current_epoch + 1
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        return f"epoch {epoch}/{trainer.max_epochs}"
    if trainer.max_steps is not None and trainer.max_steps > 0:
        return f"epoch {epoch}, step {trainer.global_step}/{trainer.max_steps}"
    return f"epoch {epoch}"
