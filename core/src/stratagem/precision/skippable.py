"""`skippable`: marks a method that a loop may skip, where it would do no more than the call that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def skippable(method: F) -> F:
    """Mark a method, as `step`, for which a loop may call what it is given, as the optimizer's own `step`.

    The mark is of this one function: a subclass that overrides the method is called, unless it marks its own.
    """
    method.is_skippable = True  # type: ignore[attr-defined]  # a function's own attribute, which F doesn't declare
    return method


def is_skippable(method: Callable[..., Any]) -> bool:
    """Whether a method, as it is bound to an object, has the mark."""
    return getattr(method, "is_skippable", False)
