"""The index says what the distributions in plugins/ offer."""

from __future__ import annotations

from stratagem_facade.index import INDEX

from stratagem.installed.catalogue import load_catalogue
from stratagem.names.index import known_plugins


def test_it_is_what_the_core_reads() -> None:
    assert known_plugins() is INDEX


def test_every_alias_and_preset_is_its_own_name():
    catalogue = load_catalogue()
    for component in catalogue.components:
        names = component.names()
        assert len(set(names)) == len(names), component.name
        for name in names:
            assert catalogue.find(component.kind, name) == component
