"""Where something comes from: compared as a whole, printed without the entry point."""

import dataclasses

import pytest

from stratagem.plugin.origin import BrokenPlugin, Origin


def test_it_is_printed_as_distribution_and_version():
    assert str(Origin("third-party", "2.5", "third")) == "third-party 2.5"


def test_it_is_the_same_only_where_all_of_it_is():
    origin = Origin("a", "1", "x")
    assert len({origin, Origin("a", "1", "x")}) == 1
    assert not {origin} & {Origin("b", "1", "x"), Origin("a", "2", "x"), Origin("a", "1", "y")}
    with pytest.raises(dataclasses.FrozenInstanceError):
        origin.version = "2"


def test_a_broken_plugin_keeps_its_error():
    error = ImportError("no driver")
    broken = BrokenPlugin(Origin("a", "1", "x"), error)
    assert broken.error is error
    assert broken != BrokenPlugin(broken.origin, ImportError("no driver"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        broken.error = None
