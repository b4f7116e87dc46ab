"""The options that strategies share are the same in each: as their base states them."""

from __future__ import annotations

import inspect

import pytest

from stratagem import ParallelStrategy, ProcessGroupStrategy, Strategy
from stratagem.sdk.catalogue import load_catalogue


def strategies() -> dict[str, type[Strategy]]:
    found = {}
    for offer in load_catalogue().of_kind("strategy"):
        if not offer.missing():
            cls = offer.load()
            found[cls.__name__] = cls
    return found


def base_of(cls: type[Strategy]) -> type[Strategy]:
    return next(base for base in (ProcessGroupStrategy, ParallelStrategy, Strategy) if issubclass(cls, base))


@pytest.mark.parametrize("cls", strategies().values(), ids=strategies())
def test_a_strategy_has_the_shared_options_of_its_base(cls: type[Strategy]) -> None:
    own, shared = inspect.signature(cls).parameters, inspect.signature(base_of(cls)).parameters
    for name, parameter in shared.items():
        assert name in own
        assert (own[name].annotation, own[name].default) == (parameter.annotation, parameter.default), name
    leading = [name for name in own if name in shared][: len(shared)]
    assert leading == [name for name in shared if name in own], "in the order of the base"
