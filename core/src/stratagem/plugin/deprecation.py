"""What the plugin API before this one had, still understood, with a warning that says what to write in its place.

One line where a name or a field goes, and it works for one more API version::

    __getattr__ = replaced_names(__name__, since=2, Offer="stratagem.sdk.catalogue:Resolved")

    @renamed_fields(since=2, plain="original_module")
    @dataclass(frozen=True)
    class SetupRequest: ...
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from stratagem.plugin.component import imported

C = TypeVar("C", bound=type)


def replaced_names(module: str, since: int, **replaced: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module some of whose names are elsewhere, or are called something else.

    Each name warns once per process, at the line that first asks for it.

    Args:
        module: its `__name__`.
        since: the API version from which on they are deprecated; they go with the next.
        replaced: old name → "module:name" of what takes its place.
    """
    found: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in replaced:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name not in found:
            found[name] = imported(replaced[name])
            _warn(f"{module}.{name}", since, replaced[name].replace(":", "."))
        return found[name]

    return get


def renamed_fields(since: int, **renamed: str) -> Callable[[C], C]:
    """Let a dataclass be read, made and copied by the names that some of its fields had.

    Args:
        since: the API version from which on the old names are deprecated; they go with the next.
        renamed: old name → new name.
    """

    def decorate(record: C) -> C:
        made = record.__init__  # type: ignore[misc]

        @wraps(made)
        def init(self: Any, *args: Any, **given: Any) -> None:
            for old in [name for name in given if name in renamed]:
                _warn(f"{record.__name__}({old}=…)", since, f"{renamed[old]}=…")
                given[renamed[old]] = given.pop(old)
            made(self, *args, **given)

        record.__init__ = init  # type: ignore[misc]
        for old, new in renamed.items():
            setattr(record, old, property(_reading(f"{record.__name__}.{old}", since, new)))
        return record

    return decorate


def _reading(what: str, since: int, new: str) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        _warn(what, since, new)
        return getattr(self, new)

    return read


def _warn(what: str, since: int, instead: str) -> None:
    warnings.warn(
        f"{what} is deprecated since plugin API {since}, and goes with {since + 1}: write {instead}",
        DeprecationWarning,
        stacklevel=3,
    )
