"""Find out whether a program itself calls a method that looks like a hook but that no trainer calls."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


def calls_itself(kind: type, base: type, name: str) -> bool:
    """Return whether code of a class, or of the modules that define it, refers to `name`.

    Args:
        kind: the class.
        base: the ancestor from which on the classes are not the program's.
        name: name of a method. A reference is enough: `self.name`, `model.name` or `getattr(self, "name")`.
    """
    classes = [each for each in kind.__mro__ if issubclass(each, base) and each is not base]
    modules = {each.__module__ for each in classes}
    spaces: list[Any] = [vars(each) for each in classes]
    spaces += [vars(sys.modules[module]) for module in modules if module in sys.modules]
    return any(name in _mentioned(code) for space in spaces for code in _codes(space, modules))


def _codes(space: Any, modules: set[str]) -> Iterator[CodeType]:
    """Yield the code of functions in a class or a module, and in the classes that the module defines."""
    for value in list(space.values()):
        is_class = isinstance(value, type) and value.__module__ in modules
        for each in list(vars(value).values()) if is_class else [value]:
            for found in (each, *(getattr(each, name, None) for name in ("__func__", "fget", "__wrapped__"))):
                if isinstance(found, FunctionType):
                    yield found.__code__


def _mentioned(code: CodeType) -> set[str]:
    """Return the names and strings that a function and its inner functions read.

    Only reads count: the body of a class stores its methods' names without calling them.
    """
    reads = (each for each in dis.get_instructions(code) if each.opname.startswith("LOAD_"))
    found = {each.argval for each in reads if isinstance(each.argval, str)}
    return found.union(*(_mentioned(each) for each in code.co_consts if isinstance(each, CodeType)))
