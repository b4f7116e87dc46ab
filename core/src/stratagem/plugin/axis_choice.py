"""Expressions of axes, such as shard=2+tensor=2: their terms, and the axes that these name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem.plugin.component import Component

AxisSize = Union[int, str]
"""A number of ranks, or "auto" for all ranks that the other axes leave."""

EXAMPLE = "shard=2+tensor=2"


@dataclass(frozen=True)
class AxisChoice:
    """One term of an expression."""

    component: Component
    """The axis."""
    size: AxisSize
    """Its number of ranks."""


def is_expression(name: str) -> bool:
    """Whether a strategy's name is an expression of axes."""
    return "=" in name or "+" in name


def axis_terms(expression: str) -> Sequence[tuple[str, AxisSize]]:
    """Return the terms of an expression: names, such as "shard" or "DISTRIBUTION:shard", and sizes.

    A term without a size has the size "auto".

    Raises:
        ConfigError: a term isn't NAME=SIZE.
    """
    return [_term(text.strip(), expression) for text in expression.split("+")]


def check_axis_size(name: str, size: object) -> AxisSize:
    """Check the size of an axis, and return it.

    Args:
        name: of the axis.
        size: a positive whole number, which may be a text, or "auto".

    Raises:
        ConfigError: `size` is something else.
    """
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    is_number = isinstance(size, int) and not isinstance(size, bool) and size > 0
    if not isinstance(size, (int, str)) or not (size == "auto" or is_number):
        raise ConfigError(
            f"{name}={size!r} is not a number of ranks: give a positive whole number, or 'auto'"
        )
    return size


def _term(text: str, expression: str) -> tuple[str, AxisSize]:
    name, equals, size = (part.strip() for part in text.partition("="))
    if not name or (equals and not size):
        raise ConfigError(
            f"strategy {expression!r} has the term {text!r}, which isn't NAME=SIZE: write axes as in {EXAMPLE!r}"
        )
    return name, check_axis_size(name, size if equals else "auto")
