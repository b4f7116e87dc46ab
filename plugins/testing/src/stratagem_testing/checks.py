"""`Check`: one claim about a component, and the function that checks it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar, overload

ALL_SIZES = (1, 2, 4)
"""World sizes at which a check runs, unless it says otherwise."""

F = TypeVar("F", bound=Callable[..., None])


class ConformanceError(AssertionError):
    """A component doesn't do what a check claims. The message says what it does instead."""


class NotApplicable(Exception):  # noqa: N818  # no error: the check has nothing to try
    """A check has nothing to try. The message says why."""


@dataclass(frozen=True)
class Check:
    """A function `check_xxx(subject)` that raises if its claim doesn't hold."""

    name: str
    """Name of the check, such as "parity": the function's name without `check_`."""
    claim: str
    """What the component must do: the first line of the function's docstring."""
    run: Callable[[Any], None]
    """The function."""
    needs: frozenset[str] = frozenset()
    """Names from `FEATURES`. The check is skipped if the component doesn't declare all of them."""
    world_sizes: tuple[int, ...] = ALL_SIZES
    """World sizes at which the check is meaningful."""
    in_worker: bool = False
    """Whether the check runs in another process, because it computes."""
    theme: str = field(default="", compare=False)
    """Name of the check's file."""


@overload
def check(function: F) -> F: ...


@overload
def check(
    *, needs: Iterable[str] = (), world_sizes: tuple[int, ...] = ALL_SIZES, in_worker: bool = False
) -> Callable[[F], F]: ...


def check(
    function: F | None = None,
    *,
    needs: Iterable[str] = (),
    world_sizes: tuple[int, ...] = ALL_SIZES,
    in_worker: bool = False,
) -> F | Callable[[F], F]:
    """Mark `check_xxx(subject)` as a check.

    Args:
        function: the function, if the decorator is used without arguments.
        needs: names from `FEATURES` that a component must declare for the check.
        world_sizes: world sizes at which the check is meaningful.
        in_worker: whether to run the check in another process. A process that has computed may not be able to fork.
    """

    def mark(marked: F) -> F:
        name = marked.__name__.removeprefix("check_")
        if name == marked.__name__:
            raise ValueError(f"a check must be called check_xxx, not {marked.__name__}")
        claim = (inspect.getdoc(marked) or "").partition("\n")[0].rstrip(".")
        if not claim:
            raise ValueError(f"{marked.__name__} has no docstring with its claim")
        theme = marked.__module__.rpartition(".")[2]
        marked.conformance = Check(  # type: ignore[attr-defined]  # functions take any attribute
            name, claim, marked, frozenset(needs), tuple(world_sizes), in_worker, theme
        )
        return marked

    return mark(function) if function is not None else mark


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Return the checks of some modules, in the order of their definitions."""
    found: list[Check] = []
    for module in modules:
        own = [
            value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__
        ]
        found += [value.conformance for value in own if hasattr(value, "conformance")]
    names = [each.name for each in found]
    if len(names) != len(set(names)):
        raise ValueError(f"two checks have the same name in {sorted(names)}")
    return tuple(found)


def expect(holds: bool, otherwise: str) -> None:
    """Raise `ConformanceError` with a sentence unless `holds`."""
    if not holds:
        raise ConformanceError(otherwise)
