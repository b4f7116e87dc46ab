"""The hints for names that aren't installed are what the packages under plugins/ declare."""

from pathlib import Path

from stratagem.plugin.catalogue import load_catalogue
from stratagem.plugin.offered import OFFERED

PLUGINS = Path(__file__).parents[3] / "plugins"


def test_offered_is_what_the_packages_declare():
    ours = {f"stratagem-{path.name}" for path in PLUGINS.iterdir() if (path / "pyproject.toml").exists()}
    declared: dict[str, dict[str, str]] = {}
    for offer in load_catalogue().offers:
        if offer.origin.distribution in ours:
            for name in offer.component.names():
                declared.setdefault(offer.component.kind, {})[name] = offer.origin.distribution
    assert declared == OFFERED


def test_every_alias_and_preset_is_its_own_name():
    catalogue = load_catalogue()
    for offer in catalogue.offers:
        names = offer.component.names()
        assert len(set(names)) == len(names), offer.component.name
        for name in names:
            assert catalogue.find(offer.component.kind, name).offer == offer
