"""Which plugins the lists of names leave in, and what is said of a name that isn't found."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stratagem.errors import ApiVersionError, BrokenPluginError, UnknownNameError
from stratagem.installed.catalogue import CORE, Catalogue, load_catalogue
from stratagem.installed.plugins import forget_installed
from stratagem.names.index import Index
from stratagem.plugin.component import Component
from stratagem.plugin.origin import BrokenPlugin, Origin


def offers(site: Any, *names: str) -> None:
    for name in names:
        site.offer(f"{name}-party", f'"strategy", "{name}", "m:C", ""')


def names(**lists: Any) -> list[str]:
    return load_catalogue(**lists).names("strategy")


# Lists ------------------------------------------------------------------------------------------------


def test_the_allow_list_takes_a_name_of_the_distribution_or_the_entry_point(site: Any) -> None:
    site.install(
        "left-party",
        """
        from stratagem.plugin.component import Component
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_components():
            return [Component("strategy", "left", "m:C", "")]
        """,
    )
    (info,) = site.path.glob("*.dist-info")
    (info / "entry_points.txt").write_text("[stratagem]\nleft_entry = left_party_plugin\n")
    forget_installed()
    offers(site, "right")
    # One of a plugin's two names is enough: a list with both is a rare one.
    for name in ("left-party", "left-entry", "Left_Entry"):
        assert names(only=[name]) == ["left"]
        assert "left" not in names(without=[name])
        assert "right" in names(without=[name])
    assert names(only=["left-party", "right-party"]) == ["left", "right"]


def test_what_is_left_out_is_listed_with_its_origin(site: Any) -> None:
    offers(site, "left", "right")
    left_out = load_catalogue(without=["left-party"]).left_out
    assert [str(origin) for origin in left_out] == ["left-party 1.0"]
    assert CORE not in {origin.distribution for origin in load_catalogue(only=["left-party"]).left_out}
    assert load_catalogue().left_out == ()


def test_variables_hold_names_between_commas_and_spaces(site: Any, monkeypatch: Any) -> None:
    offers(site, "left", "right", "third")
    monkeypatch.setenv("STRATAGEM_PLUGINS", " left-party ,, right-party,")
    assert names() == ["left", "right"]
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", ",right-party")
    assert names() == ["left"]
    monkeypatch.setenv("STRATAGEM_PLUGINS", ", ,")
    assert {"left", "third"} < set(names())


def test_an_allowed_distribution_brings_the_plugins_that_it_depends_on(site: Any, monkeypatch: Any) -> None:
    offers(site, "left", "right", "third", "fourth")
    needs = [("left", "right_party >=1"), ("right", "third-party"), ("left", 'fourth-party ; extra == "all"')]
    for name, needed in needs:
        with open(site.path / f"{name}_party-1.0.dist-info" / "METADATA", "a") as metadata:
            metadata.write(f"Requires-Dist: {needed}\n")
    monkeypatch.setenv("STRATAGEM_PLUGINS", "left-party")
    assert names() == ["left", "right", "third"]
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", "third-party")
    assert names() == ["left", "right"]


# Names ------------------------------------------------------------------------------------------------


def test_a_colon_wants_a_distribution_before_it(site: Any) -> None:
    offers(site, "left")
    with pytest.raises(UnknownNameError, match=r"':left' names no distribution .*: write 'left', or DISTRIB"):
        load_catalogue().find("strategy", ":left")
    assert load_catalogue().find("strategy", "left-party:left").name == "left"


def test_only_one_that_has_the_name_is_found_in_a_distribution_with_several(site: Any) -> None:
    site.offer("both-party", '"strategy", "one", "m:C", ""', '"strategy", "two", "m:C", ""')
    assert load_catalogue().find("strategy", "both-party:two").name == "two"
    assert load_catalogue().find("strategy", "one").name == "one"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_only_a_newer_plugin_api_is_refused(version: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("stratagem.installed.catalogue.API_VERSION", 2)
    made = Catalogue((Component("strategy", "mine", "m:C", "", api_version=version),))
    if version <= 2:
        assert made.find("strategy", "mine").api_version == version
        return
    with pytest.raises(ApiVersionError):
        made.find("strategy", "mine")


def unknown(name: str, *components: Component, kind: Any = "strategy", **fields: Any) -> str:
    with pytest.raises((UnknownNameError, BrokenPluginError)) as raised:
        Catalogue(components, **fields).find(kind, name)
    return str(raised.value)


def strategy(name: str) -> Component:
    return Component("strategy", name, "m:C", "")


def environment(name: str) -> Component:
    return Component("environment", name, "m:C", "")


@pytest.fixture
def _nothing_offered(monkeypatch: Any) -> None:
    monkeypatch.setattr("stratagem.installed.catalogue.known_plugins", Index)


@pytest.mark.usefixtures("_nothing_offered")
def test_three_names_are_near_at_most() -> None:
    near = [strategy(f"strategy{letter}") for letter in "abcde"]
    said = unknown("strategyx", *near)
    assert len(said.partition("nearest: ")[2].partition(";")[0].split(", ")) == 3


@pytest.mark.usefixtures("_nothing_offered")
def test_what_is_said_of_a_name_near_to_none() -> None:
    assert unknown("qqqq") == (
        "no strategy is called 'qqqq'; none is installed; `stratagem strategies` lists them"
    )
    assert unknown("qqqq", strategy("left")) == (
        "no strategy is called 'qqqq'; `stratagem strategies` lists them"
    )
    assert unknown("qqqq", kind="accelerator").endswith("`stratagem accelerators` lists them")
    # Kinds without a command of their own are few: all their names are said.
    assert unknown("qqqq", environment("b"), environment("a"), kind="environment") == (
        "no environment is called 'qqqq'; installed: a, b"
    )
    assert unknown("qqqq", kind="environment") == "no environment is called 'qqqq'; installed: none"
    assert unknown("lefd", strategy("left")) == (
        "no strategy is called 'lefd'; nearest: left; `stratagem strategies` lists them"
    )


BROKEN = BrokenPlugin(Origin("broken-party", "1.0", "broken_entry"), ImportError("no vendor"))
LEFT_OUT = Origin("quiet-party", "1.0", "quiet_entry")


@pytest.mark.usefixtures("_nothing_offered")
def test_a_broken_or_left_out_plugin_is_named_where_it_is_meant() -> None:
    for name in ("broken-party", "broken_entry", "Broken_Party", "broken-party:any", "Broken_Party:any"):
        assert "which can't be loaded: ImportError: no vendor" in unknown(name, broken=(BROKEN,))
    for name in ("quiet-party", "quiet_entry", "quiet-party:any"):
        assert "quiet-party 1.0, which is installed but left out" in unknown(name, left_out=(LEFT_OUT,))
    said = unknown("qqqq", broken=(BROKEN,), left_out=(LEFT_OUT,))
    assert "left out" not in said
    assert "not loaded, since broken: broken-party 1.0" in said


def test_what_to_install_for_a_name_that_the_project_offers(monkeypatch: Any) -> None:
    offered = {"warp": "stratagem-warp", "warq": "stratagem-warp", "warpx": "stratagem-x"}
    monkeypatch.setattr("stratagem.installed.catalogue.known_plugins", lambda: Index({"strategy": offered}))
    assert unknown("warp") == "strategy 'warp' isn't installed: pip install stratagem-warp"
    assert unknown("warr").endswith("; to get all of them: pip install stratagem-warp stratagem-x")
    assert unknown("zwarpx").endswith("; to get all of them: pip install stratagem-warp stratagem-x")
    here = [strategy(name) for name in offered]
    assert unknown("warr", *here).endswith("; `stratagem strategies` lists them")
    # Of another distribution: it is installed, so that isn't what is missing.
    assert "pip install" not in unknown("elsewhere:warp", *here)
    broken = BrokenPlugin(Origin("stratagem-warp", "1.0", "warp_entry"), ImportError("no vendor"))
    assert "comes with stratagem-warp 1.0, which can't be loaded" in unknown("warp", broken=(broken,))
    left_out = Origin("stratagem-warp", "1.0", "warp_entry")
    assert "which is installed but left out" in unknown("warp", left_out=(left_out,))


# Records ----------------------------------------------------------------------------------------------


def test_a_catalogue_is_not_changed() -> None:
    made = Catalogue((strategy("mine"),))
    with pytest.raises(FrozenInstanceError):
        made.components = ()  # type: ignore[misc]  # it is frozen
