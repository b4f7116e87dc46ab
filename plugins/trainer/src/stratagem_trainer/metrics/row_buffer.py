"""`RowBuffer`: collects rows, and passes them to the loggers in groups."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from stratagem_trainer.loggers.base import Logger, Row
from stratagem_trainer.metrics.accumulator import Value, as_floats

FLUSH_ROWS = 256
FLUSH_SECONDS = 1.0


class RowBuffer:
    """Collects rows, whose values stay tensors until a group of rows is passed on.

    Args:
        loggers: empty on all ranks but 0.
        unlogged: keys that loggers don't get. It may grow later.
    """

    def __init__(self, loggers: Sequence[Logger], unlogged: Collection[str] = ()) -> None:
        self._loggers, self._unlogged = loggers, unlogged
        self._rows: list[tuple[int, int, dict[str, Value]]] = []
        self._flushed_at = time.perf_counter()

    def write(self, step: int, epoch: int, values: dict[str, Value]) -> None:
        """Add a row, whose dict the buffer keeps. Passes rows on if there are 256, or if a second has passed."""
        if not self._loggers:
            return
        if self._unlogged:
            values = {key: value for key, value in values.items() if key not in self._unlogged}
        self._rows.append((step, epoch, values))
        if len(self._rows) >= FLUSH_ROWS or time.perf_counter() - self._flushed_at > FLUSH_SECONDS:
            self.hand_out()

    def hand_out(self) -> None:
        """Pass all rows to the loggers. Waits for the device."""
        numbers = iter(as_floats([value for _, _, values in self._rows for value in values.values()]))
        rows = [
            Row(step, epoch, {name: next(numbers) for name in values}) for step, epoch, values in self._rows
        ]
        self._rows.clear()
        self._flushed_at = time.perf_counter()
        if rows:
            for logger in self._loggers:
                logger.write(rows)
