"""What each entry point's module says, read once and each by itself."""

from __future__ import annotations

import builtins
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stratagem.installed import record_cache
from stratagem.installed.plugins import Installed, command_plugins, forget_installed, installed_plugins
from stratagem.plugin.origin import Origin

HOOKIMPL = (
    "from stratagem.plugin.hookspecs import hookimpl\nfrom stratagem.plugin.component import Component\n"
)
OFFERS = (
    HOOKIMPL
    + "@hookimpl\ndef stratagem_components():\n    return [Component('strategy', 'third', 'm:C', '')]\n"
)
COMMANDS = HOOKIMPL + "@hookimpl\ndef stratagem_commands(cli):\n    cli.add_lazy('greet', 'a:b')\n"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_NO_CACHE", "1")


def plugin(name: str) -> Installed:
    (found,) = [each for each in installed_plugins() if each.origin.distribution == name]
    return found


def test_components_have_the_origin_of_their_entry_point(site: Any) -> None:
    site.install("third-party", OFFERS, version="2.5")
    found = plugin("third-party")
    assert found.origin == Origin("third-party", "2.5", "third_party")
    assert [(each.name, each.origin) for each in found.components] == [("third", found.origin)]
    assert (found.value, found.has_commands, found.error) == ("third_party_plugin", False, None)


def test_what_a_plugin_prints_goes_to_stderr(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    printing = OFFERS.replace("    return", "    print('asked')\n    return") + COMMANDS.replace(
        "cli.add", "print('added'); cli.add"
    )
    site.install("third-party", "print('imported')\n" + printing)
    assert [each.name for each in plugin("third-party").components] == ["third"]
    cli = type("Group", (), {"add_lazy": lambda self, name, target: None})()
    ((_, add),) = [each for each in command_plugins() if each[0].distribution == "third-party"]
    add(cli)
    said = capsys.readouterr()
    assert (said.out, said.err.split()) == ("", ["imported", "asked", "added"])


def test_a_plugin_may_have_commands_alone(site: Any) -> None:
    site.install("third-party", COMMANDS)
    found = plugin("third-party")
    assert (found.components, found.has_commands, found.error) == ((), True, None)
    added = {}
    cli = type("Group", (), {"add_lazy": lambda self, name, target: added.update({name: target})})()
    ((origin, add),) = [each for each in command_plugins() if each[0].distribution == "third-party"]
    add(cli)
    assert (origin, added) == (found.origin, {"greet": "a:b"})


def test_plugins_without_commands_add_none(site: Any) -> None:
    site.install("third-party", OFFERS)
    assert "third-party" not in {origin.distribution for origin, _ in command_plugins()}


@pytest.mark.parametrize(
    "value", ["third_party_plugin:own", "third_party_plugin : own", "third_party_plugin:own [extra]"]
)
def test_an_entry_point_may_name_an_object(site: Any, value: str) -> None:
    site.install("third-party", OFFERS + "class Holder:\n    pass\nown = Holder()\nown.inner = own\n")
    source = (site.path / "third_party_plugin.py").read_text()
    site.write(
        "third_party_plugin",
        source.replace("def stratagem_components()", "def other()")
        + ("own.stratagem_components = hookimpl(lambda: [Component('strategy', 'owned', 'm:C', '')])\n"),
    )
    points = site.path / "third_party-1.0.dist-info/entry_points.txt"
    points.write_text(f"[stratagem]\nthird = {value}\n")
    forget_installed()
    assert [each.name for each in plugin("third-party").components] == ["owned"]


def test_an_installed_plugin_is_read_once_until_it_is_forgotten(site: Any) -> None:
    site.install(
        "third-party", "import builtins\nbuiltins.read = getattr(builtins, 'read', 0) + 1\n" + OFFERS
    )
    first = installed_plugins()
    assert installed_plugins() is first
    assert builtins.read == 1  # type: ignore[attr-defined]  # the plugin's file sets it
    del sys.modules["third_party_plugin"]
    forget_installed()
    assert installed_plugins() == first
    assert builtins.read == 2  # type: ignore[attr-defined]  # as above
    del builtins.read  # type: ignore[attr-defined]  # as above


def test_records_that_are_cached_need_no_import_and_broken_plugins_are_tried_again(
    site: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRATAGEM_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(record_cache, "SETTLED_S", -1e6)
    site.install("third-party", OFFERS + COMMANDS)
    site.install("broken-party", "import a_library_that_is_not_there")
    first = plugin("third-party")
    assert plugin("broken-party").error is not None
    del sys.modules["third_party_plugin"]
    forget_installed()
    assert plugin("third-party") == first
    assert "third_party_plugin" not in sys.modules
    assert isinstance(plugin("broken-party").error, ModuleNotFoundError)
    with pytest.raises(FrozenInstanceError):
        first.value = "elsewhere"  # type: ignore[misc]  # it is frozen


def test_a_broken_plugin_leaves_nothing_of_itself_to_others(site: Any) -> None:
    site.install("a-broken-party", OFFERS + "@hookimpl\ndef stratagem_component():\n    pass\n")
    site.install("another-party", OFFERS.replace("'third'", "'fourth'"))
    broken = plugin("a-broken-party")
    assert (broken.components, broken.has_commands) == ((), False)
    assert "stratagem_component" in str(broken.error)
    assert [each.name for each in plugin("another-party").components] == ["fourth"]


def test_what_is_no_record_is_said(site: Any) -> None:
    site.install("third-party", OFFERS.replace("[Component", "['ddp', Component"))
    assert isinstance(plugin("third-party").error, TypeError)
    assert str(plugin("third-party").error) == "stratagem_components returned 'ddp', which isn't a Component"


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "1 / 0"])
def test_whatever_an_import_raises_is_kept(site: Any, source: str) -> None:
    site.install("third-party", source)
    error = plugin("third-party").error
    assert type(error) is (SystemExit if "Exit" in source else ZeroDivisionError)


def test_commands_that_fail_raise_and_harm_no_run(site: Any) -> None:
    site.install(
        "third-party", COMMANDS.replace("cli.add_lazy('greet', 'a:b')", "raise RuntimeError('no terminal')")
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no terminal"):
            plugin("third-party").add_commands(None)
