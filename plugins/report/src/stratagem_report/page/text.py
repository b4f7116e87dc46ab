"""Formatting of numbers and words on the page."""

from __future__ import annotations

from html import escape

__all__ = ["duration", "escape", "milliseconds", "number", "percent", "plural"]


def number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, and separators between thousands."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.{digits - 1}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:f}"


def duration(seconds: float) -> str:
    """Return a duration, such as "1 h 02 min"."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60:02} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60:02} h"


def milliseconds(ns: float) -> str:
    """Return nanoseconds as milliseconds, without the unit."""
    return number(ns / 1e6)


def percent(share: float) -> str:
    """Return a share of 1 in percent, without decimals from 10 % on."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


def plural(count: int, noun: str) -> str:
    """Return "1 step" or "2 steps"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
