"""How long a rank waits for the others."""

from __future__ import annotations

from datetime import timedelta

from stratagem.errors import ConfigError, short

DEFAULT = timedelta(minutes=30)
LONGEST = timedelta(days=10_000)
"""Torch counts a timeout's nanoseconds in 64 bits."""


def deadline(timeout: timedelta | None, timeout_s: float | None) -> timedelta:
    """Return the time limit from a strategy's `timeout` or `timeout_s`; 30 minutes if neither is given.

    Raises:
        ConfigError: both are given, or the time isn't positive, or is too long for torch.
    """
    if timeout is not None and timeout_s is not None:
        raise ConfigError(f"timeout={timeout} and timeout_s={timeout_s} say the same thing: give one of them")
    if timeout_s is not None:
        try:
            timeout = timedelta(seconds=timeout_s)
        except (OverflowError, ValueError, TypeError) as error:  # too large, NaN, not a number
            raise ConfigError(
                f"timeout_s={short(timeout_s)} is not a number of seconds: give one, such as 60"
            ) from error
    if timeout is not None and not timedelta(0) < timeout <= LONGEST:
        raise ConfigError(
            f"timeout of {timeout.total_seconds():g} s must be more than 0 and at most {LONGEST.days} days"
        )
    return timeout or DEFAULT
