"""Text for metrics and durations in progress output."""

from __future__ import annotations

from collections.abc import Mapping


def metrics_text(metrics: Mapping[str, float | str]) -> str:
    """Return metrics as one line, such as "loss 0.1234  acc 0.97"."""
    return "  ".join(
        f"{name} {value if isinstance(value, str) else format(value, '.4g')}"
        for name, value in metrics.items()
    )


def duration_text(seconds: float) -> str:
    """Return a duration such as "2.4 s", "3:07" or "1:02:45"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
