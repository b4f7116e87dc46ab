"""Whether a class overrides methods whose answer is an attribute."""

import pytest

from stratagem.precision.overriding import is_overridden


class Base:
    is_quick = True

    def run(self):
        return "base"

    def walk(self):
        return "base"


class Same(Base):
    def sit(self):
        return "more"


class Runs(Base):
    def run(self):
        return "derived"


class Says(Runs):
    is_quick = True


class SaysAndRuns(Base):
    is_quick = False

    def run(self):
        return "derived"


class RunsAgain(Says):
    def run(self):
        return "again"


class Mixin:
    def walk(self):
        return "mixed in"


class Mixed(Mixin, Base):
    pass


class Behind(Base, Mixin):
    """Its base's own methods come first."""


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Base, False),
        (Same, False),
        (Runs, True),
        (type("DerivedFromRuns", (Runs,), {}), True),
        (Says, False),
        (SaysAndRuns, False),
        (RunsAgain, True),
        (Mixed, True),
        (Behind, False),
    ],
)
def test_it_is_overridden_by_whoever_comes_nearest_and_says_nothing(cls, expected):
    assert is_overridden(cls, Base, {"run", "walk"}, "is_quick") is expected


def test_other_methods_dont_count():
    assert is_overridden(Runs, Base, {"walk"}, "is_quick") is False
    assert is_overridden(Runs, Base, {"run"}, "another_answer") is True
    assert is_overridden(Says, Base, {"run"}, "another_answer") is True
