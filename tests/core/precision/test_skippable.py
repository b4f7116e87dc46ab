"""A method says itself whether a loop may skip it; one that overrides it has to say so again."""

from stratagem.plugin.forwarding import forwards
from stratagem.precision.skippable import is_skippable, skippable


class Base:
    @skippable
    def run(self):
        return "base"

    def walk(self):
        return "base"


class Same(Base):
    def walk(self):
        return "more"


class Runs(Base):
    def run(self):
        return super().run()


class RunsAndSaysSo(Runs):
    @skippable
    def run(self):
        return super().run()


class RunsAgain(RunsAndSaysSo):
    def run(self):
        return "again"


class Mixin:
    def run(self):
        return "mixed in"


class Mixed(Mixin, Base):
    pass


class Behind(Base, Mixin):
    """Its base's own methods come first."""


@forwards
class Wrapper(Base):
    def __init__(self, inner):
        self.inner = inner


class WrapperThatRuns(Wrapper):
    def run(self):
        return self.inner.run()


def test_the_nearest_definition_counts():
    kinds = (Base, Same, Runs, type("Derived", (Runs,), {}), RunsAndSaysSo, RunsAgain, Mixed, Behind)
    answers = [is_skippable(kind().run) for kind in kinds]
    assert answers == [True, True, False, False, True, False, False, True]
    assert not is_skippable(Base().walk)


def test_what_forwards_has_the_mark_of_its_base_and_an_override_hasnt():
    assert [is_skippable(kind(Base()).run) for kind in (Wrapper, WrapperThatRuns)] == [True, False]
