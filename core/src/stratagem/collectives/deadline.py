"""How long a rank waits for the others."""

from __future__ import annotations

from datetime import timedelta

from stratagem.errors import ConfigError

DEFAULT = timedelta(minutes=30)


def deadline(timeout: timedelta | None, timeout_s: float | None) -> timedelta:
    """Read a strategy's `timeout`, or the same in seconds; 30 minutes where neither is given.

    Raises:
        ConfigError: both are given, or it isn't more than 0.
    """
    if timeout is not None and timeout_s is not None:
        raise ConfigError(f"timeout={timeout} and timeout_s={timeout_s} say the same thing: give one of them")
    if timeout_s is not None:
        timeout = timedelta(seconds=timeout_s)
    if timeout is not None and timeout <= timedelta(0):
        raise ConfigError(f"timeout of {timeout.total_seconds():g} s must be more than 0")
    return timeout or DEFAULT
