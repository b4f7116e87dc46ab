"""Pickles functions and classes by value, with cloudpickle, if workers can't import them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pickle import PickleBuffer
from types import FunctionType
from typing import Any

import cloudpickle

from stratagem_launch.transfer.buffers import SentBuffers
from stratagem_launch.transfer.pickling import JobPickler


def pickler_by_value(sent: list[str], main_is_importable: bool) -> Callable[..., JobPickler]:
    """Return a pickler that pickles functions and classes by name if workers can import them, otherwise by value.

    Args:
        sent: a list to which it adds the names of objects that it pickles by value.
        main_is_importable: whether workers can import what `__main__` defines.
    """
    return partial(_ValuePickler, sent, main_is_importable)


def dumps_by_value(value: Any) -> bytes:
    """Pickle a worker's result. Classes that were sent to the worker by value become the original ones again."""
    stream = io.BytesIO()
    _ValuePickler([], True, stream, _WithinPickle()).dump(value)
    return stream.getvalue()


class _WithinPickle(SentBuffers):
    def __call__(self, buffer: PickleBuffer) -> bool:
        return True


def _reducers() -> Mapping[type, Any]:
    """Return cloudpickle's reducers, without the one that would send the content of a file that is open."""
    return {
        kind: made
        for kind, made in cloudpickle.Pickler.dispatch_table.items()
        if kind is not io.TextIOWrapper
    }


class _ValuePickler(JobPickler, cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    dispatch_table = _reducers()

    def __init__(
        self, sent: list[str], main_is_importable: bool, stream: io.BytesIO, buffers: SentBuffers
    ) -> None:
        super().__init__(stream, buffers)
        self._sent = sent
        self._main_is_importable = main_is_importable

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, (FunctionType, type)):
            return super().reducer_override(obj)
        if is_importable(obj, self._main_is_importable):
            return NotImplemented
        reduced = cloudpickle.Pickler.reducer_override(self, obj)
        if reduced is not NotImplemented and obj.__module__ != "builtins":
            self._sent.append(obj.__qualname__.replace(".<locals>", ""))
        return reduced


def is_importable(obj: FunctionType | type, main_is_importable: bool) -> bool:
    """Return whether workers find a function or a class under its name."""
    found: Any = sys.modules.get(obj.__module__ or "")
    if obj.__module__ == "__main__" and not main_is_importable:
        return False
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj
