"""Calling callbacks, and paying only for the moments that somebody listens to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Callable

from stratagem_trainer.callbacks.base import HOOKS, Callback


class CallbackRunner:
    """For each moment, the methods of the callbacks that override it.

    Args:
        callbacks: in order; those with a higher `order` come last.
        trainer: what each method gets first.
        module: what each method gets second.
    """

    def __init__(self, callbacks: Iterable[Callback], trainer: Any, module: Any) -> None:
        self.callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self._listeners: dict[str, list[Callable[..., None]]] = {
            hook: [
                partial(getattr(callback, hook), trainer, module)
                for callback in self.callbacks
                if hook in vars(callback) or getattr(type(callback), hook) is not getattr(Callback, hook)
            ]
            for hook in HOOKS
        }

    def of(self, moment: str) -> list[Callable[..., None]]:
        """What to call at a moment, without the trainer and the module."""
        return self._listeners[moment]

    def __call__(self, moment: str, *args: Any) -> None:
        for listener in self._listeners[moment]:
            listener(*args)
