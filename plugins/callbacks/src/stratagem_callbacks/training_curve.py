"""`TrainingCurve`: draws a fit's metrics into a picture in the run folder."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stratagem_trainer.callbacks.base import Callback

from stratagem.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

_HINT = 'pip install "stratagem-callbacks[plot]"'


class TrainingCurve(Callback):
    """Draw the metrics in the run's CSV file when a fit ends.

    Rank 0 draws the file that `CSVLogger` wrote.

    Args:
        filename: the picture's name in the run folder; its ending decides the format.
        metrics_filename: the CSV file's name.
        required: raise UsageError if matplotlib isn't installed. False prints one line instead, and draws nothing;
            the trainer's default callback has False.

    Raises:
        ConfigError: a file name includes a folder.
        UsageError: `required`, and matplotlib isn't installed.
    """

    order = 200
    """Runs after all callbacks that may still log."""
    is_left_out_of_fast_dev_run = True

    def __init__(
        self, filename: str = "curves.png", metrics_filename: str = "metrics.csv", required: bool = True
    ) -> None:
        for name in (filename, metrics_filename):
            if not name or os.path.basename(name) != name:
                raise ConfigError(f"TrainingCurve got {name!r}; give a file's name without a folder")
        if required and find_spec("matplotlib") is None:
            raise UsageError(f"TrainingCurve needs matplotlib: {_HINT}")
        self.filename = filename
        self.metrics_filename = metrics_filename

    def on_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage == "fit":
            self._draw(trainer)

    def _draw(self, trainer: TrainerView) -> None:
        if not trainer.is_main or trainer.run_dir is None:
            return
        for logger in trainer.loggers:
            logger.flush()
        source = os.path.join(trainer.run_dir, self.metrics_filename)
        if not os.path.isfile(source):
            return
        if find_spec("matplotlib") is None:
            print(f"No {self.filename}: matplotlib isn't installed ({_HINT}).", file=sys.stderr)
            return
        from stratagem_callbacks.curves import draw_curves

        draw_curves(source, os.path.join(trainer.run_dir, self.filename))
