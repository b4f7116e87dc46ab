"""Calling callbacks, and paying only for the moments that somebody listens to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

from stratagem_trainer.callbacks.base import HOOKS, Callback
from stratagem_trainer.hook_names import overrides


class CallbackRunner:
    """For each moment, the bound methods of the callbacks that override it.

    Args:
        callbacks: in order; those with a higher `order` come last.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self._listeners: dict[str, list[Callable[..., None]]] = {
            hook: [
                getattr(callback, hook) for callback in self.callbacks if overrides(callback, hook, Callback)
            ]
            for hook in HOOKS
        }

    def of(self, moment: str) -> list[Callable[..., None]]:
        """Methods to call at a moment."""
        return self._listeners[moment]

    def __call__(self, moment: str, *args: Any) -> None:
        for listener in self._listeners[moment]:
            listener(*args)
