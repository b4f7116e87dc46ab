"""`Retention`: which checkpoints stay for good, even if better ones follow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from stratagem.errors import ConfigError


@dataclass(frozen=True)
class Retention:
    """Keeps one checkpoint every n steps, and one every n seconds; made with checked values.

    Raises:
        ConfigError: a value that can't be meant.
    """

    every_n_steps: int | None = None
    interval: timedelta | None = None

    def __post_init__(self) -> None:
        check_interval("keep_time_interval", self.interval)

    def retains(self, step: int, time_s: float, last_step: int, last_time_s: float) -> bool:
        """Whether a checkpoint stays.

        Args:
            step: at which it is.
            time_s: when it is written, by the wall clock.
            last_step: of the one that stayed last; 0 where none did.
            last_time_s: when that was written, or the first checkpoint where none stayed.
        """
        every, interval = self.every_n_steps, self.interval
        is_turn = every is not None and step // every > last_step // every
        return is_turn or (interval is not None and time_s - last_time_s >= interval.total_seconds())


def check_interval(name: str, value: timedelta | None) -> None:
    """Refuse what is no length of time.

    Raises:
        ConfigError: names the argument.
    """
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta(0)):
        raise ConfigError(f"ModelCheckpoint got {name}={value!r}; give a timedelta above 0")
