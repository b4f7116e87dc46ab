"""Convert durations in settings to seconds."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any

from stratagem.errors import ConfigError, short

_LONGEST_S = 1e9


def max_time_s(max_time: object) -> float | None:
    """Return `max_time` in seconds. It is a timedelta, a dict of its keywords, or "DD:HH:MM:SS".

    Raises:
        ConfigError: it is something else, or not above 0.
    """
    return None if max_time is None else _time_s("max_time", max_time, (4,), "'DD:HH:MM:SS'")


def duration_s(name: str, duration: object) -> float | None:
    """Return a duration in seconds. It may also be a number of seconds, or "HH:MM:SS".

    Raises:
        ConfigError: it is something else, or not above 0.
    """
    if isinstance(duration, str) and ":" not in duration:
        with suppress(ValueError):
            duration = float(duration)
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        duration = {"seconds": duration}
    return (
        None
        if duration is None
        else _time_s(name, duration, (3, 4), "a number of seconds, 'HH:MM:SS', 'DD:HH:MM:SS'")
    )


def check_seconds(name: str, value: object) -> None:
    """Refuse anything but a number of seconds above 0.

    Raises:
        ConfigError: names the setting.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _LONGEST_S:  # type: ignore[operator]  # a number, by is_number
        raise ConfigError(
            f"{name}={short(value)} must be a number of seconds above 0, at most {_LONGEST_S:,.0f}"
        )


def _time_s(name: str, value: Any, parts: Collection[int], allowed: str) -> float:
    try:
        if isinstance(value, str):
            numbers = [int(number) for number in value.strip().split(":")]
            if len(numbers) not in parts:
                raise ValueError
            *days, hours, minutes, seconds = numbers
            if minutes >= 60 or seconds >= 60:
                raise ConfigError(
                    f"{name}={short(value)} has {minutes} minutes and {seconds} seconds: each must be at most 59"
                )
            limit = timedelta(days=sum(days), hours=hours, minutes=minutes, seconds=seconds)
        else:
            limit = value if isinstance(value, timedelta) else timedelta(**value)
    except (TypeError, ValueError, OverflowError):
        limit = timedelta(0)
    if limit <= timedelta(0):
        raise ConfigError(
            f"{name}={short(value)} is not a time above 0: pass {allowed}, a timedelta, or its keywords, such as "
            "{'hours': 2}"
        )
    return limit.total_seconds()
