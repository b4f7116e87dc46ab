"""What a run has of one kind of component."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stratagem.plugin.component import Capabilities, Component
from stratagem.plugin.origin import Origin
from stratagem.resolve.resolved import GIVEN, Constant, Deferred, Resolved, resolved_from

CAPABLE = Capabilities(processes="per-device")
RECORD = Component(
    *("checkpoint", "folder", "late_module:Folder", ""),
    capabilities=CAPABLE,
    preload=("more",),
    origin=Origin("a-party", "2.0", "a"),
)


def test_a_component_gives_its_name_origin_capabilities_and_modules() -> None:
    found = resolved_from(RECORD, "value", why="auto: the best")
    assert (found.kind, found.name, found.value, found.why) == (
        "checkpoint",
        "folder",
        "value",
        "auto: the best",
    )
    assert (found.origin, found.component) == ("a-party 2.0", "folder")
    assert found.capabilities is CAPABLE
    assert found.preload == ("late_module", "more")


def test_it_is_called_as_it_was_chosen() -> None:
    found = resolved_from(RECORD, "value", "folder_fast")
    assert (found.name, found.component, found.why) == ("folder_fast", "folder", "")


def test_what_the_caller_gave_is_no_plugins_component() -> None:
    found = Resolved("extension", "mine", 3)
    assert (found.origin, found.why, found.component, found.preload) == (GIVEN, "", "", ())
    assert found.capabilities == Capabilities()
    for fixed, name in ((found, "value"), (Constant(3), "value")):
        with pytest.raises(FrozenInstanceError):
            setattr(fixed, name, 4)


def test_a_component_is_imported_when_it_is_made(site: Any) -> None:
    site.write("late_module", "class Folder:\n    def __init__(self, *given): self.given = given\n")
    make = Deferred(RECORD)
    assert "late_module" not in sys.modules
    assert make("a", 2).given == ("a", 2)
    assert "late_module" in sys.modules


@pytest.mark.parametrize("arguments", [(), (1,), (1, "b")])
def test_what_was_given_is_given_whatever_it_is_asked_with(arguments: Any) -> None:
    given = object()
    assert Constant(given)(*arguments) is given
    assert Constant(3) == Constant(3) != Constant(4)
