"""`forwards`: forwards a wrapper's public members to the wrapped object, without listing each one."""

from __future__ import annotations

from functools import update_wrapper
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def forwards(wrapper: T) -> T:
    """Give a class all public members of its base, forwarded to `inner`. Members that it defines itself are kept.

    Methods have the base's signatures and docstrings. Properties and attributes are read from `inner` each time. An
    attribute that is set on a wrapper is read from the wrapper.
    """
    base = wrapper.__base__
    for name in {**vars(base), **vars(base).get("__annotations__", {})}:
        value = vars(base).get(name)
        if name.startswith("_") or name in vars(wrapper):
            continue
        if callable(value):
            setattr(wrapper, name, _method(name, value))
        elif isinstance(value, property) or not hasattr(value, "__get__"):
            setattr(wrapper, name, _Attribute(name, value.__doc__ if isinstance(value, property) else None))
    return wrapper


class _Attribute:
    def __init__(self, name: str, doc: str | None) -> None:
        self._name, self.__doc__ = name, doc

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance.inner, self._name)


def _method(name: str, of_base: Any) -> Any:
    def handed_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return update_wrapper(handed_on, of_base)
