"""Checks for every environment."""

from __future__ import annotations

from typing import Any

from stratagem import Environment
from stratagem.errors import UsageError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import EnvironmentSubject

PLACE = (
    "global_rank",
    "local_rank",
    "node_rank",
    "world_size",
    "local_world_size",
    "main_address",
    "main_port",
)


_NONSENSE = ("nonsense", "9" * 5000, "\N{SUPERSCRIPT TWO}")


def _class(subject: EnvironmentSubject) -> Any:
    return subject.load()


@check(world_sizes=(1,))
def check_detected(subject: EnvironmentSubject) -> None:
    """It detects its launcher's variables with a reason, and doesn't detect a process without any."""
    cls = _class(subject)
    expect(bool(getattr(cls, "name", "")), "it has no name")
    for variables, _ in subject.examples:
        reason = cls.detect(variables)
        expect(bool(reason), f"it doesn't detect {sorted(variables)}")
    if cls.creates_processes:
        expect(cls.detect({}) is None, "it detects a process without any variables")


@check(world_sizes=(1,))
def check_place(subject: EnvironmentSubject) -> None:
    """Ranks, sizes and the rendezvous address are those that its launcher set."""
    cls = _class(subject)
    if not subject.examples:
        raise NotApplicable("its subject has no examples")
    for variables, expected in subject.examples:
        environment: Environment = cls(variables)
        place = {name: getattr(environment, name) for name in PLACE}
        for name, value in expected.items():
            expect(place[name] == value, f"{name} is {place[name]!r}, not {value!r}")
        expect(
            0 <= place["global_rank"] < place["world_size"], f"rank {place['global_rank']} is out of range"
        )
        expect(0 <= place["local_rank"] < place["local_world_size"], "its local rank is out of range")
        expect(isinstance(environment.attempt, int), "attempt is not a number")


@check(world_sizes=(1,))
def check_snapshot(subject: EnvironmentSubject) -> None:
    """It reads its variables once, when it is made."""
    for variables, _ in subject.examples:
        given = dict(variables)
        environment: Environment = _class(subject)(given)
        before = [getattr(environment, name) for name in PLACE]
        given.clear()
        after = [getattr(environment, name) for name in PLACE]
        expect(before == after, "its values change when the variables do")


@check(world_sizes=(1,))
def check_refuses_nonsense(subject: EnvironmentSubject) -> None:
    """A missing or invalid variable, or a far too large number, raises an error that names the variable."""
    for variables, _ in subject.examples:
        for name in variables:
            without = {key: value for key, value in variables.items() if key != name}
            _refused_or_ignored(_class(subject), without, name)
            for nonsense in _NONSENSE:
                _refused_or_ignored(_class(subject), {**variables, name: nonsense}, name)


def _refused_or_ignored(cls: Any, given: dict[str, str], name: str) -> None:
    try:
        environment: Environment = cls(given)
        for each in PLACE:
            getattr(environment, each)
    except UsageError as error:
        expect(name in str(error), f"an invalid {name} is refused without naming it: {error}")
    except Exception as error:
        expect(
            False, f"an invalid {name} raises {type(error).__name__}, which isn't an error for users: {error}"
        )
