"""The hints for names that aren't installed are what the packages under plugins/ declare."""

from pathlib import Path

from stratagem.installed.catalogue import load_catalogue
from stratagem.names.offered import OFFERED

PLUGINS = Path(__file__).parents[3] / "plugins"


def test_offered_is_what_the_packages_declare():
    ours = {f"stratagem-{path.name}" for path in PLUGINS.iterdir() if (path / "pyproject.toml").exists()}
    declared: dict[str, dict[str, str]] = {}
    for component in load_catalogue().components:
        if component.origin.distribution in ours:
            for name in component.names():
                declared.setdefault(component.kind, {})[name] = component.origin.distribution
    assert declared == OFFERED


def test_every_alias_and_preset_is_its_own_name():
    catalogue = load_catalogue()
    for component in catalogue.components:
        names = component.names()
        assert len(set(names)) == len(names), component.name
        for name in names:
            assert catalogue.find(component.kind, name) == component
