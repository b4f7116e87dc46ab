"""What comes of a check: passed, failed, skipped by name, waived."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stratagem_testing import NotApplicable, check, expect, run_check
from stratagem_testing.checks import Check, ConformanceError, checks_in
from stratagem_testing.outcome import failure_reason
from stratagem_testing.recipe import Recipe
from stratagem_testing.trained import described, naming
from stratagem_testing.workers import RankError


@dataclass(frozen=True)
class Thing:
    """A component that is what `value` says."""

    value: str = "right"
    features: frozenset[str] = frozenset()
    waivers: dict[str, str] = field(default_factory=dict)
    world_size: int = 0
    check: str = ""
    folder: str = ""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)


@check(world_sizes=(1, 2))
def check_right(thing: Thing) -> None:
    """It is right."""
    expect(thing.value == "right", f"it is {thing.value}")


@check(needs=["closure"])
def check_closure(thing: Thing) -> None:
    """It has closures."""


@check
def check_nothing(thing: Thing) -> None:
    """It has nothing to try."""
    raise NotApplicable("there is nothing")


@check
def check_place(thing: Thing) -> None:
    """The error says where it is."""
    assert (thing.world_size, thing.check) == (2, "place")
    assert list(Path(thing.folder).iterdir()) == []


RIGHT, CLOSURE, NOTHING, PLACE = (
    each.conformance for each in (check_right, check_closure, check_nothing, check_place)
)


def verdict(check: Check, thing: Thing, world_size: int = 1) -> tuple[str, str]:
    outcome = run_check(check, thing, world_size)
    return outcome.verdict, outcome.reason


def test_what_holds_passes_and_what_does_not_fails_with_what_was_seen() -> None:
    assert verdict(RIGHT, Thing()) == ("passed", "")
    assert verdict(RIGHT, Thing("left")) == ("failed", "it is left")
    assert (RIGHT.name, RIGHT.claim) == ("right", "It is right")


def test_a_waiver_is_an_expected_failure_and_has_to_go_when_it_passes() -> None:
    waivers = {"right": "issue 12"}
    assert verdict(RIGHT, Thing("left", waivers=waivers)) == ("waived", "issue 12")
    assert verdict(RIGHT, Thing(waivers=waivers)) == ("failed", "passes, but is waived: issue 12")


def test_what_is_not_declared_is_skipped_by_name() -> None:
    skipped = verdict(CLOSURE, Thing())
    assert skipped[0] == "skipped"
    assert "not declared: closure (an optimizer that evaluates" in skipped[1]
    assert verdict(CLOSURE, Thing(features=frozenset({"closure"}))) == ("passed", "")


def test_world_sizes_and_nothing_to_try_skip_with_a_reason() -> None:
    assert verdict(NOTHING, Thing()) == ("skipped", "there is nothing")
    assert verdict(RIGHT, Thing(), 4) == ("skipped", "the component runs on 1 or 2 devices")
    assert verdict(PLACE, Thing(), 2) == ("passed", "")


def test_a_check_needs_a_name_and_a_claim() -> None:
    with pytest.raises(ValueError, match="must be called check_xxx"):
        check(lambda thing: None)

    def check_silent(thing: Thing) -> None: ...

    with pytest.raises(ValueError, match="docstring"):
        check(check_silent)


def test_checks_are_found_in_the_order_in_which_they_are_written() -> None:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    assert [each.name for each in checks_in(module)] == ["right", "closure", "nothing", "place"]


def test_of_a_failed_rank_the_exceptions_first_line_is_reported() -> None:
    traceback = (
        "rank 1: Traceback (most recent call last):\n"
        '  File "step.py", line 3, in step\n'
        "    loss.backward()\n"
        "RuntimeError: shapes don't fit\n"
        "Expected (2, 3).\n"
        "Exception raised from check at copy.cpp:1\n"
    )
    assert failure_reason(RankError(traceback, 1)) == "rank 1: RuntimeError: shapes don't fit"
    assert (
        failure_reason(RankError("rank 1 hung: not done after 3 s", 1)) == "rank 1 hung: not done after 3 s"
    )


def test_a_recipe_is_described_by_its_own_settings() -> None:
    assert described(Recipe(steps=3, precision="64-true")) == "Recipe(steps=3, precision='64-true')"
    with pytest.raises(ConformanceError, match=r"^too far \(tried with Recipe\(\)\)$"), naming(Recipe()):
        raise ConformanceError("too far")
