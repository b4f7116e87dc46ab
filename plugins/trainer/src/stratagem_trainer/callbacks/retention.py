"""`Retention`: decides which checkpoints are never deleted, even if better ones follow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from stratagem.errors import ConfigError


@dataclass(frozen=True)
class Retention:
    """Keeps one checkpoint every n steps, and one every interval of time.

    Raises:
        ConfigError: the interval is not a positive timedelta.
    """

    every_n_steps: int | None = None
    interval: timedelta | None = None

    def __post_init__(self) -> None:
        check_interval("keep_time_interval", self.interval)

    def retains(self, step: int, time_s: float, last_step: int, last_time_s: float) -> bool:
        """Return whether to keep a checkpoint for good.

        Args:
            step: its optimizer step.
            time_s: wall-clock time at which it is written.
            last_step: step of the last checkpoint that was kept for good; 0 if there is none.
            last_time_s: wall-clock time of that checkpoint, or else of the first checkpoint.
        """
        every, interval = self.every_n_steps, self.interval
        is_turn = every is not None and step // every > last_step // every
        return is_turn or (interval is not None and time_s - last_time_s >= interval.total_seconds())


def check_interval(name: str, value: timedelta | None) -> None:
    """Refuse a value that isn't a positive timedelta.

    Raises:
        ConfigError: names the argument.
    """
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta(0)):
        raise ConfigError(f"ModelCheckpoint got {name}={value!r}; pass a timedelta above 0")
