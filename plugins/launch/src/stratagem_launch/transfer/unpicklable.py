"""Finds the object in a task that can't be sent to workers."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

from stratagem import Task
from stratagem.errors import UsageError
from stratagem_launch.torch_private import MODULE_TABLES
from stratagem_launch.transfer.buffers import SentBuffers

_MAX_DEPTH = 12
_MAX_LOOKS = 500


def refusal(task: Any, error: Exception, start_method: str, main_is_importable: bool) -> UsageError:
    """Return the error that names what can't be pickled.

    Args:
        task: the argument of `dumps`.
        error: of the pickler.
        start_method: of the workers.
        main_is_importable: as for `dumps`.
    """
    path, error = _Search(main_is_importable).culprit(task, error)
    what = f"{path} of the task" if path else "the task"
    return UsageError(
        f"{what} can't be sent to workers by start_method={start_method!r} ({error}): make it in the workers, as in "
        'setup or configure_model, leave it out by __getstate__, or use start_method="fork"'
    )


class _Search:
    """Finds the innermost object that can't be pickled."""

    def __init__(self, main_is_importable: bool) -> None:
        self._main_is_importable = main_is_importable
        self._looks = 0

    def culprit(self, obj: Any, error: Exception) -> tuple[str, Exception]:
        """Return the object's path, such as "module.net.lock", and its error. The path of `obj` itself is empty."""
        path, children = "", _roots(obj)
        for _ in range(_MAX_DEPTH):
            for name, child in children:
                failed = self._error_of(child)
                if failed is not None:
                    path, children, error = path + name, _children(child), failed
                    break
            else:
                break
        return path.lstrip("."), error

    def _error_of(self, obj: Any) -> Exception | None:
        from stratagem_launch.transfer.by_value import pickler_by_value

        self._looks += 1
        if self._looks > _MAX_LOOKS or isinstance(obj, (str, bytes, int, float, type(None))):
            return None
        try:
            pickler_by_value([], self._main_is_importable)(io.BytesIO(), SentBuffers()).dump(obj)
        except Exception as error:
            return error
        return None


def _roots(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects in a task, with names. Dataclass objects have an empty name."""
    if isinstance(obj, Task):
        yield from _roots((obj.function, *obj.args))
    elif isinstance(obj, tuple):
        for each in obj:
            yield from _roots(each)
    else:
        yield "" if is_dataclass(obj) else getattr(obj, "__qualname__", type(obj).__name__), obj


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects in an object's pickle, each with its part of the path."""
    if isinstance(obj, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif isinstance(obj, FunctionType):
        with contextlib.suppress(ValueError):  # a variable without a value
            yield from ((f".{name}", cell.cell_contents) for name, cell in _closure(obj))
    elif isinstance(obj, MethodType):
        yield "", obj.__self__
    else:
        for key, value in _attributes(obj):
            if key in MODULE_TABLES and isinstance(value, Mapping):
                yield from ((f".{name}", inner) for name, inner in value.items())
            else:
                yield f".{key}", value


def _closure(function: FunctionType) -> Iterator[tuple[str, CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or ())


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = obj.__getstate__() if hasattr(obj, "__getstate__") else obj.__dict__
    except Exception:
        return
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, Mapping):
            yield from part.items()
