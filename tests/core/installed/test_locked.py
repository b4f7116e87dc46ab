"""The lock file: what it says, what is refused by it, and that what is refused hasn't been imported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stratagem.errors import LockError
from stratagem.installed.catalogue import load_catalogue
from stratagem.installed.locked import refuse_unlocked, write_lock
from stratagem.installed.plugins import forget_installed

THIRD = '"strategy", "third", "third_strategy:Third", "a third one"'


@pytest.fixture
def lock(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STRATAGEM_NO_CACHE", "1")
    return tmp_path / "stratagem.lock"


def written(lock: Path) -> dict:
    write_lock(str(lock))
    return json.loads(lock.read_text())["plugins"]


def refused(lock: Path, **how: bool) -> str:
    """What is wrong with what is installed now; "" if nothing is."""
    forget_installed()
    try:
        refuse_unlocked(str(lock), **how)
    except LockError as error:
        return str(error)
    return ""


def package(site, name: str, files: dict[str, str]) -> None:
    """Install a distribution of one package with `plugin.py`, and a RECORD."""
    site.install(name, "")
    info = site.path / f"{name}-1.0.dist-info"
    (info / "entry_points.txt").write_text(f"[stratagem]\n{name} = {name}.plugin\n")
    for file, text in {"__init__.py": "", "plugin.py": "", **files}.items():
        path = site.path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}_more/impl.py,,\n../../bin/{name},,\n")
    (site.path / f"{name}_more").mkdir()
    (site.path / f"{name}_more/impl.py").write_text("")


# What it says -----------------------------------------------------------------------------------------


def test_it_has_versions_origins_and_hashes_sorted(site, lock) -> None:
    site.offer("third-party", THIRD, version="2.5")
    site.offer("git-party", THIRD)
    (site.path / "git_party-1.0.dist-info/direct_url.json").write_text(
        json.dumps({"url": "https://example.org/it", "vcs_info": {"vcs": "git", "commit_id": "abc123"}})
    )
    plugins = written(lock)
    assert list(plugins) == sorted(plugins)
    assert {"stratagem-core", "stratagem-ddp", "third-party"} <= set(plugins)
    assert plugins["third-party"]["version"] == "2.5"
    assert plugins["third-party"]["origin"] == "an index"
    assert plugins["git-party"]["origin"] == "https://example.org/it@abc123"
    assert len(plugins["third-party"]["sha256"]) == 64
    assert written(lock) == plugins
    assert refused(lock, strict=True) == ""


def test_it_imports_nothing(site, lock, tmp_path) -> None:
    marker = tmp_path / "imported"
    site.install("third-party", f"open({str(marker)!r}, 'w').close()")
    written(lock)
    assert refused(lock) == ""
    assert not marker.exists()


# What is refused --------------------------------------------------------------------------------------


def test_a_plugin_that_is_not_in_it_is_refused_before_it_is_imported(
    site, lock, tmp_path, monkeypatch
) -> None:
    site.offer("third-party", THIRD)
    written(lock)
    marker = tmp_path / "imported"
    site.install("evil-party", f"open({str(marker)!r}, 'w').close()")
    monkeypatch.setenv("STRATAGEM_LOCKED", str(lock))
    with pytest.raises(
        LockError, match=r"the plugin evil-party 1.0 \(an index\) isn't in stratagem.lock: install"
    ):
        load_catalogue()
    assert not marker.exists()
    site.uninstall("evil-party")
    assert "third" in load_catalogue().names("strategy")


@pytest.mark.parametrize("group", ["stratagem.index", "stratagem.optimizer_trial", "stratagem.names"])
def test_a_library_that_the_core_would_import_is_refused_too(site, lock, group) -> None:
    written(lock)
    info = site.path / "library-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nMine = library_module:MINE\n")
    assert refused(lock).startswith("the plugin library 1.0 (an index) isn't in stratagem.lock")


def test_a_file_that_changed_is_refused_before_it_is_imported(site, lock, tmp_path, monkeypatch) -> None:
    site.offer("third-party", THIRD)
    written(lock)
    marker = tmp_path / "imported"
    site.write("third_party_plugin", f"open({str(marker)!r}, 'w').close()")
    monkeypatch.setenv("STRATAGEM_LOCKED", str(lock))
    forget_installed()
    with pytest.raises(LockError, match=r"the files of the plugin third-party 1.0 aren't those"):
        load_catalogue()
    assert not marker.exists()


def test_another_version_is_refused(site, lock) -> None:
    site.offer("third-party", THIRD)
    written(lock)
    site.uninstall("third-party")
    site.offer("third-party", THIRD, version="1.1")
    assert "the plugin third-party 1.1 is locked at 1.0 in stratagem.lock" in refused(lock)


def test_what_is_missing_is_a_difference_for_the_check_alone(site, lock) -> None:
    site.offer("third-party", THIRD)
    written(lock)
    site.uninstall("third-party")
    assert refused(lock) == ""
    assert "third-party 1.0 of stratagem.lock isn't installed" in refused(lock, strict=True)


@pytest.mark.parametrize(
    "change",
    ["package/inner/data.bin", "package/plugin/__init__.py", "package_more/impl.py", "package-1.0.dist-info"],
)
def test_every_file_that_may_be_imported_counts(site, lock, change) -> None:
    package(site, "package", {"inner/data.bin": "1"})
    written(lock)
    path = site.path / change
    if path.is_dir():
        (path / "entry_points.txt").write_text("[stratagem]\npackage = package.other\n")
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("changed")
    assert "the files of the plugin package 1.0" in refused(lock)


def test_compiled_files_and_scripts_do_not_count(site, lock) -> None:
    package(site, "package", {})
    written(lock)
    (site.path / "package/__pycache__").mkdir()
    (site.path / "package/__pycache__/plugin.cpython-311.pyc").write_bytes(b"compiled")
    assert refused(lock) == ""


def test_a_package_that_comes_first_on_the_path_counts(site, lock, tmp_path, monkeypatch) -> None:
    package(site, "package", {})
    written(lock)
    (tmp_path / "before/package").mkdir(parents=True)
    (tmp_path / "before/package/__init__.py").write_text("evil = True")
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    assert "the files of the plugin package 1.0" in refused(lock)


def test_of_an_editable_plugin_its_sources_count(site, lock, tmp_path, monkeypatch) -> None:
    source = tmp_path / "project/src"
    (source / "editable_party").mkdir(parents=True)
    (source / "editable_party/plugin.py").write_text("")
    (source / "editable_party/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(source))
    site.install("editable-party", "")
    info = site.path / "editable_party-1.0.dist-info"
    (info / "entry_points.txt").write_text("[stratagem]\ne = editable_party.plugin\n")
    (info / "direct_url.json").write_text('{"url": "file:///project", "dir_info": {"editable": true}}')
    assert written(lock)["editable-party"]["origin"] == "file:///project (editable)"
    (source / "editable_party/plugin.py").write_text("x = 1")
    assert "the files of the plugin editable-party 1.0" in refused(lock)


def test_within_a_namespace_only_the_plugins_own_package_counts(site, lock) -> None:
    site.install("spaced", "")
    (site.path / "company/spaced").mkdir(parents=True)
    (site.path / "company/spaced/__init__.py").write_text("")
    (site.path / "spaced-1.0.dist-info/entry_points.txt").write_text(
        "[stratagem]\ns = company.spaced.plugin\n"
    )
    written(lock)
    (site.path / "company/other").mkdir()
    (site.path / "company/other/__init__.py").write_text("")
    assert refused(lock) == ""
    (site.path / "company/spaced/plugin.py").write_text("")
    assert "the files of the plugin spaced 1.0" in refused(lock)


# The file itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file or directory; `stratagem plugins lock` writes one"),
        ("{", "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
        ("[]", "isn't of format 1"),
        ('{"format": 2, "plugins": {}}', "isn't of format 1"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 1, "plugins": {"a": 3}}', "is damaged"),
        ('{"format": 1, "plugins": {"a": {"version": "1"}}}', "is damaged"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(lock, content, said) -> None:
    if content is not None:
        lock.write_text(content)
    assert said in refused(lock)


def test_one_is_the_file_in_the_working_directory(site, lock, monkeypatch) -> None:
    monkeypatch.chdir(lock.parent)
    monkeypatch.setenv("STRATAGEM_LOCKED", "1")
    with pytest.raises(LockError, match=rf"{lock}.* can't be read"):
        load_catalogue()
    written(lock)
    assert load_catalogue().components


def test_a_place_that_cannot_be_written_is_named(tmp_path) -> None:
    with pytest.raises(LockError, match="can't be written"):
        write_lock(os.fspath(tmp_path / "none" / "stratagem.lock"))


def test_files_behind_a_linked_folder_count(site, lock, tmp_path) -> None:
    package(site, "third", {})
    behind = tmp_path / "behind"
    (behind / "deeper").mkdir(parents=True)
    (behind / "deeper/impl.py").write_text("1")
    (behind / "up").symlink_to(behind)
    (site.path / "third/linked").symlink_to(behind)
    os.mkfifo(site.path / "third/fifo")
    written(lock)
    assert refused(lock) == ""
    (behind / "deeper/impl.py").write_text("2")
    assert "the files of the plugin third 1.0 aren't those that are locked" in refused(lock)


def test_a_lock_file_that_is_none(site, tmp_path) -> None:
    os.mkfifo(tmp_path / "stratagem.lock")
    assert "isn't a regular file" in refused(tmp_path / "stratagem.lock")


@pytest.mark.parametrize("text", ["[1]", "{", '{"vcs_info": [1]}', '{"dir_info": 5}', "[" * 100_000])
def test_a_damaged_origin_is_an_index(site, lock, text) -> None:
    package(site, "third", {})
    (site.path / "third-1.0.dist-info/direct_url.json").write_text(text)
    assert written(lock)["third"]["origin"] == "an index"
