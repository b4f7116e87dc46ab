"""What a wrapper hands on to the one it wraps."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from stratagem.plugin.forwarding import forwards


class Answer:
    size: int
    ratio = 1.5

    def method(self, first: int, *, second: str = "x") -> tuple[Any, ...]:
        """Say what it got."""
        return (type(self).__name__, first, second)

    @property
    def reported(self) -> str:
        """Reported by whom."""
        return type(self).__name__

    @classmethod
    def made(cls) -> str:
        return cls.__name__

    def own(self) -> str:
        return "of the answer"


@forwards
class Wrapper(Answer):
    def __init__(self, inner: Answer) -> None:
        self.inner = inner

    def own(self) -> str:
        return "of the wrapper"


class Inner(Answer):
    def __init__(self) -> None:
        self.size = 3


def test_calls_and_attributes_are_those_of_the_wrapped_as_they_are_now() -> None:
    inner = Inner()
    wrapper = Wrapper(inner)
    assert (wrapper.method(1, second="y"), wrapper.reported) == (("Inner", 1, "y"), "Inner")
    assert (wrapper.size, wrapper.ratio) == (3, 1.5)
    inner.size, inner.ratio = 4, 2.5
    assert (wrapper.size, wrapper.ratio) == (4, 2.5)


def test_what_a_wrapper_has_itself_stays() -> None:
    wrapper = Wrapper(Inner())
    assert (wrapper.own(), wrapper.made()) == ("of the wrapper", "Wrapper")
    wrapper.ratio = 9.0
    assert (wrapper.ratio, wrapper.inner.ratio) == (9.0, 1.5)

    class Derived(Wrapper):
        ratio = 7.0

        def method(self, first: int, *, second: str = "x") -> tuple[Any, ...]:
            return ("derived", *super().method(first + 1, second=second))

    derived = Derived(Wrapper(Inner()))
    assert (derived.method(1), derived.ratio) == (("derived", "Inner", 2, "x"), 7.0)


def test_signatures_and_docstrings_are_those_of_the_base() -> None:
    assert inspect.signature(Wrapper.method) == inspect.signature(Answer.method)
    assert (Wrapper.method.__doc__, inspect.getdoc(Wrapper.reported)) == (
        "Say what it got.",
        "Reported by whom.",
    )


def test_a_wrapper_without_an_inner_says_so() -> None:
    with pytest.raises(AttributeError, match="inner"):
        _ = Wrapper.__new__(Wrapper).ratio
