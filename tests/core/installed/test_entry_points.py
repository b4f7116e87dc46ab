"""Where plugins are found, and by which names distributions are compared."""

from __future__ import annotations

from typing import Any

import importlib_metadata
import pytest

from stratagem.installed.entry_points import (
    GROUP,
    normalise,
    plugin_entry_points,
    required_distributions,
)


@pytest.mark.parametrize("name", ["third-party", "Third_Party", "third.party", "THIRD-_.Party"])
def test_names_are_compared_as_package_indexes_do(name: str) -> None:
    assert normalise(name) == "third-party"


def found(distribution: str) -> list[tuple[str, str, str]]:
    return [
        (point.name, point.value, version)
        for point, name, version in plugin_entry_points()
        if name == distribution
    ]


def test_an_entry_point_comes_with_its_distribution(site: Any) -> None:
    site.install("Third_Party", "", version="2.5")
    assert found("third-party") == [("Third_Party", "Third_Party_plugin", "2.5")]
    (own,) = found("stratagem-core")
    assert own[1] == "stratagem.plugin.own"


def test_other_groups_are_left_alone(site: Any) -> None:
    site.install("third-party", "")
    (site.path / "third_party-1.0.dist-info/entry_points.txt").write_text(
        "[console_scripts]\nthird = third:main\n"
    )
    assert found("third-party") == []


def test_an_entry_point_without_a_distribution_is_called_by_its_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stray = importlib_metadata.EntryPoint("stray", "stray_module:plugin", GROUP)
    monkeypatch.setattr(importlib_metadata, "entry_points", lambda group: [stray] if group == GROUP else [])
    assert list(plugin_entry_points()) == [(stray, "stray_module", "0")]


def test_what_a_distribution_needs_is_named_without_versions_and_extras(site: Any) -> None:
    needed = "Left_Party>=1.0, right.party[fast]; python_version > '3', tests-only; extra == 'test', plain"
    site.install("third-party", "", requires=needed)
    assert list(required_distributions("third-party")) == ["left-party", "right-party", "plain"]


def test_what_needs_nothing_or_is_not_installed_has_none(site: Any) -> None:
    site.install("third-party", "")
    assert list(required_distributions("third-party")) == []
    assert list(required_distributions("no-such-distribution")) == []
