"""The names of precisions, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.errors import PrecisionError

PRECISIONS: tuple[str, ...] = ("32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true")
"""The canonical names that the core itself offers."""

SHORT_NAMES: dict[str, str] = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Short spelling → canonical name."""


def canonical_precision(value: str | int, allowed: Sequence[str] = PRECISIONS) -> str:
    """Return the canonical name of a precision: 16 and "16" are "16-mixed".

    Args:
        value: what the user gave.
        allowed: canonical names of all installed precisions.

    Raises:
        PrecisionError: there is no such precision.
    """
    name = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    name = SHORT_NAMES.get(name, name)
    if name in allowed:
        return name
    raise PrecisionError(
        f"precision={value!r} doesn't exist; allowed are {', '.join(allowed)}"
        f" and, for short, {', '.join(SHORT_NAMES)}"
    )
