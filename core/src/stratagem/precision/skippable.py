"""`skippable`: marks a method that a loop may skip, because it only calls what the loop can call itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def skippable(method: F) -> F:
    """Mark a method such as `step`, in place of which a loop may call the optimizer's own `step`.

    The mark belongs to the function. If a subclass overrides the method, the loop calls it, unless it is marked, too.
    """
    method.is_skippable = True  # type: ignore[attr-defined]  # a function's own attribute, which F doesn't declare
    return method


def is_skippable(method: Callable[..., Any]) -> bool:
    """Whether a bound method has the mark."""
    return getattr(method, "is_skippable", False)
