"""Records that are kept between processes are never stale, and whatever is wrong with them is no error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stratagem
from stratagem.installed import record_cache
from stratagem.installed.catalogue import load_catalogue
from stratagem.installed.plugins import command_plugins, forget_installed
from tests.support.other_user import NOBODY

THIRD = '"strategy", "third", "third_strategy:Third", "a third one"'
MODULE = "third_party_plugin"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The cache's folder; files count as settled at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(record_cache, "SETTLED_S", -1e6)
    return tmp_path / "cache" / "stratagem"


def names() -> list[str]:
    """Strategies, as a new process sees them."""
    forget_installed()
    for module in [module for module in sys.modules if module.partition(".")[0] in (MODULE, "package")]:
        del sys.modules[module]
    return [name for name in load_catalogue().names("strategy") if name.startswith(("third", "fourth"))]


def was_cached() -> bool:
    """Whether the last look needed no import of the plugin."""
    return MODULE not in sys.modules and "package" not in sys.modules


def plugin(components: str, before: str = "") -> str:
    return (
        "from stratagem import Component, hookimpl\n"
        f"{before}\n"
        "@hookimpl\n"
        "def stratagem_components():\n"
        f"    return [{components}]\n"
    )


# Kept -------------------------------------------------------------------------------------------------


def test_the_second_look_imports_no_plugin_and_finds_the_same(site, folder) -> None:
    site.offer(
        "third-party",
        THIRD + ', aliases=("tertium",), presets={"third_fast": {"speed": 3, "of": [1, None]}}, priority=7',
    )
    assert names() == ["third", "third_fast"]
    first = load_catalogue()
    assert not was_cached()
    names()
    assert was_cached()
    assert load_catalogue() == first


def test_a_plugin_with_commands_adds_them(site, folder) -> None:
    site.install(
        "third-party",
        plugin(f"Component({THIRD})")
        + "@hookimpl\ndef stratagem_commands(cli):\n    cli.add_lazy('greet', 'a:b')\n",
    )
    names()
    names()
    assert was_cached()
    added = {}
    cli = type("Group", (), {"add_lazy": lambda self, name, target: added.update({name: target})})()
    for origin, add in command_plugins():
        if origin.distribution == "third-party":
            add(cli)
    assert added == {"greet": "a:b"}


def test_no_handler_is_installed_without_a_request(site, folder, monkeypatch) -> None:
    monkeypatch.setenv("STRATAGEM_NO_CACHE", "1")
    site.offer("third-party", THIRD)
    names()
    names()
    assert not was_cached()
    assert not folder.exists()


# Never stale ------------------------------------------------------------------------------------------


def test_install_upgrade_and_uninstall_count_at_once(site, folder) -> None:
    assert names() == []
    assert names() == []
    site.offer("third-party", THIRD)
    assert names() == ["third"]
    site.uninstall("third-party")
    site.offer("third-party", THIRD.replace("third", "fourth"), version="2.0")
    assert names() == ["fourth"]
    assert load_catalogue().distributions["third-party"] == "2.0"
    site.uninstall("third-party")
    assert names() == []


def test_metadata_that_are_edited_in_place_count(site, folder) -> None:
    site.offer("third-party", THIRD)
    names()
    info = site.path / "third_party-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0.post1\n")
    names()
    assert load_catalogue().distributions["third-party"] == "1.0.post1"
    (info / "entry_points.txt").write_text("[stratagem]\n")
    assert names() == []


def test_an_edit_of_an_editable_plugin_counts(site, folder) -> None:
    site.offer("third-party", THIRD)
    assert names() == ["third"]
    site.write(MODULE, plugin(f"Component({THIRD}, aliases=('third_too',))"))
    assert names() == ["third", "third_too"]


@pytest.mark.parametrize(
    "imports", ["from package.names import NAME", "from . import names; NAME = names.NAME"]
)
def test_an_edit_of_what_its_module_imports_from_its_package_counts(site, folder, imports) -> None:
    site.offer("package", THIRD)
    (site.path / "package").mkdir()
    (site.path / "package/__init__.py").write_text("")
    component = "Component('strategy', NAME, 'm:C', '')"
    (site.path / "package/plugin.py").write_text(plugin(component, imports))
    (site.path / "package/names.py").write_text("NAME = 'third'\n")
    (site.path / "package-1.0.dist-info/entry_points.txt").write_text("[stratagem]\np = package.plugin\n")
    assert [names(), names(), was_cached()] == [["third"], ["third"], True]
    (site.path / "package/names.py").write_text("NAME = 'third_renamed'\n")
    assert names() == ["third_renamed"]
    (site.path / "package/names.py").rename(site.path / "package/other.py")
    (site.path / "package/names").mkdir()
    (site.path / "package/names/__init__.py").write_text("NAME = 'fourth'\n")
    assert names() == ["fourth"]


def test_another_path_and_what_comes_first_on_it_count(site, folder, tmp_path, monkeypatch) -> None:
    site.offer("third-party", THIRD)
    names()
    (tmp_path / "before").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    assert names() == ["third"]
    assert not was_cached()
    names()
    assert was_cached()
    (tmp_path / "before" / f"{MODULE}.py").write_text(
        plugin(f"Component({THIRD.replace('third', 'fourth')})")
    )
    assert names() == ["fourth"]
    sys.path.remove(str(tmp_path / "before"))
    assert names() == ["third"]


def test_another_version_of_python_or_of_core_counts(site, folder, monkeypatch) -> None:
    site.offer("third-party", THIRD)
    names()
    monkeypatch.setattr(stratagem, "__version__", "9.9")
    names()
    assert not was_cached()
    monkeypatch.setattr(sys, "version", "9.9")
    names()
    assert not was_cached()


def test_files_that_may_still_change_without_a_trace_are_not_kept(site, folder, monkeypatch) -> None:
    monkeypatch.setattr(record_cache, "SETTLED_S", 100)
    site.offer("third-party", THIRD)
    names()
    names()
    assert not was_cached()


@pytest.mark.parametrize(
    "before",
    [
        "import os",
        "import stratagem.errors, platform",
        "print('loaded')",
        "if True:\n    pass",
        "def words():\n    return open(__file__)",
        "from some_library import registry",
        "def of(name):\n    import importlib\n    return importlib.import_module(name)",
    ],
)
def test_a_module_that_does_more_or_depends_on_more_is_imported_every_time(site, folder, before) -> None:
    site.write("some_library", "registry = []")
    site.install("third-party", plugin(f"Component({THIRD})", before))
    assert names() == names() == ["third"]
    assert not was_cached()


@pytest.mark.parametrize(
    "more",
    [
        "presets={'third_2': {'sizes': (1, 2)}}",
        "presets={'third_2': {'kind': __import__('enum').IntEnum('Kind', 'A B').A}}",
        "presets={'third_2': {'share': float('nan')}}",
        "aliases=['third_2']",
    ],
)
def test_values_that_json_would_change_are_not_kept(site, folder, more) -> None:
    site.install("third-party", plugin(f"Component({THIRD}, {more})"))
    assert names() == names() == ["third", "third_2"]
    assert not was_cached()


def test_a_broken_plugin_is_tried_again(site, folder) -> None:
    site.offer("third-party", THIRD)
    site.install("broken-party", "import no_such_library")
    names()
    assert [b.origin.distribution for b in load_catalogue().broken] == ["broken-party"]
    names()
    assert was_cached()
    assert [b.origin.distribution for b in load_catalogue().broken] == ["broken-party"]
    site.write("no_such_library", "")
    names()
    assert load_catalogue().broken == ()


# Never an error ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"sources": {}}', "\udcff"])
def test_a_damaged_file_is_written_again(site, folder, content) -> None:
    site.offer("third-party", THIRD)
    names()
    (file,) = folder.iterdir()
    file.write_text(content, errors="surrogateescape")
    assert names() == ["third"]
    assert not was_cached()
    names()
    assert was_cached()


def test_damage_within_a_record_is_seen(site, folder) -> None:
    site.offer("third-party", THIRD)
    names()
    (file,) = folder.iterdir()
    file.write_text(file.read_text().replace("a third one", "a third 0ne"))
    names()
    assert load_catalogue().find("strategy", "third").summary == "a third one"


def test_a_folder_that_cannot_be_made_is_no_error(site, folder) -> None:
    folder.parent.write_text("a file")
    site.offer("third-party", THIRD)
    assert names() == names() == ["third"]


def test_only_files_that_no_other_user_can_write_are_trusted(site, folder) -> None:
    site.offer("third-party", THIRD)
    names()
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    for path, mode in [(file, 0o620), (folder, 0o702)]:
        path.chmod(mode)
        names()
        assert not was_cached()
        path.chmod(0o600 if path == file else 0o700)
        names()
        names()
        assert was_cached()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_trusted(site, folder) -> None:
    site.offer("third-party", THIRD)
    names()
    os.chown(folder, NOBODY, NOBODY)
    names()
    assert not was_cached()


def test_processes_that_write_at_once_leave_a_whole_file(site, folder) -> None:
    site.offer("third-party", THIRD)
    program = (
        "from stratagem.installed import plugins, record_cache\n"
        "record_cache.SETTLED_S = -1e6\n"
        "record_cache.RecordCache.read = lambda self: None\n"
        "for _ in range(8):\n"
        "    plugins.forget_installed()\n"
        "    plugins.installed_plugins()\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=environ, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [process.communicate()[1] for process in running] == [b"", b"", b""]
    (file,) = folder.iterdir()
    assert json.loads(file.read_text().partition("\n")[2])["entries"]


def test_no_more_files_are_kept_than_are_of_use(site, folder, monkeypatch) -> None:
    monkeypatch.setattr(record_cache, "MOST_FILES", 3)
    for version in range(6):
        monkeypatch.setattr(stratagem, "__version__", str(version))
        names()
    assert len(list(folder.iterdir())) == 3
