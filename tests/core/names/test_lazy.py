"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stratagem.names.lazy import import_from, lazy_names


def test_a_name_is_imported_when_it_is_first_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lazy_package"
    (package / "below").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from stratagem.sdk.lazy import lazy_names\n"
        '__getattr__, __dir__ = lazy_names(__name__, {".below.deep": "B C", "json": "dumps", ".side": "A"})\n'
    )
    (package / "side.py").write_text("A = object()\n")
    (package / "below/__init__.py").touch()
    (package / "below/deep.py").write_text("B, C = object(), object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import json

    import lazy_package

    assert dir(lazy_package) == ["A", "B", "C", "dumps"]
    assert not {"lazy_package.side", "lazy_package.below.deep"} & sys.modules.keys()
    from lazy_package import B

    assert "lazy_package.side" not in sys.modules
    assert B is lazy_package.B is sys.modules["lazy_package.below.deep"].B
    assert lazy_package.dumps is json.dumps
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'D'"):
        _ = lazy_package.D


def test_the_package_keeps_a_name_once_it_was_used() -> None:
    get, _ = lazy_names(__name__, {"json": "dumps"})
    found = get("dumps")
    assert globals()["dumps"] is found


def test_a_distribution_that_is_not_installed_is_named() -> None:
    get, _ = lazy_names("stratagem", {"stratagem_nowhere.trainer": "Trainer"})
    said = "Trainer is in stratagem-nowhere, which is not installed: pip install stratagem-nowhere"
    with pytest.raises(ImportError, match=said):
        get("Trainer")
    with pytest.raises(ImportError, match="the loop is in stratagem-nowhere"):
        import_from("stratagem_nowhere", "Loop", "the loop")


def test_what_a_module_itself_lacks_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_broken.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_from("lazy_broken", "anything")
