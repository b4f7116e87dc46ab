"""Names of `stratagem` that distributions add."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stratagem
from stratagem.names import facade
from stratagem.names.facade import facade_name, facade_names


def _forget(*names: str) -> None:
    for name in names:
        vars(stratagem).pop(name, None)


def test_a_distribution_adds_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "adding-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adding\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[stratagem.names]\nAdded = adding.module:Added\nAbsent = absent_package.module:Absent\n"
    )
    (tmp_path / "adding").mkdir()
    (tmp_path / "adding/module.py").write_text("class Added: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    _forget("Added")
    monkeypatch.setattr(facade, "_homes", {})
    assert facade_names()["Added"] == "adding.module:Added"
    assert stratagem.Added is stratagem.Added
    assert stratagem.Added.__module__ == "adding.module"
    assert "Added" in dir(stratagem)
    assert "Added" in stratagem.__all__
    assert vars(stratagem).pop("Added")  # kept, so that it isn't looked for again; and no other test has it
    with pytest.raises(
        ImportError, match="Absent is in absent-package, which is not installed: pip install absent-p"
    ):
        facade_name("Absent")


def test_a_name_that_two_distributions_add_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "squatting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squatting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stratagem.names]\nTrainer = squatting.module:Trainer\n")
    monkeypatch.syspath_prepend(tmp_path)
    _forget("Trainer")
    monkeypatch.setattr(facade, "_homes", {})
    with pytest.raises(
        ImportError, match=r"two distributions add stratagem\.Trainer, as squatting.module:Trainer and"
    ):
        from stratagem import Trainer  # noqa: F401


def test_without_any_distribution_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "_homes", {})
    monkeypatch.setattr(facade, "facade_names", dict)
    with pytest.raises(
        ImportError, match=r"Other is not a name of stratagem-core, and no .*: pip install stratagem"
    ):
        from stratagem import Other  # noqa: F401
    from stratagem import sdk  # a module: its import asks for an attribute first

    assert sdk.__name__ == "stratagem.sdk"


def test_entry_points_are_read_once_for_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    _forget("Trainer", "Module")
    monkeypatch.setattr(facade, "_homes", {})
    monkeypatch.setattr(facade, "facade_names", lambda: read.append(1) or facade_names())
    assert stratagem.Trainer.__name__ + stratagem.Module.__name__ == "TrainerModule"
    assert not hasattr(stratagem, "run_config")
    assert len(read) == 1


def test_names_of_the_core_read_no_entry_points() -> None:
    code = (
        "import sys; from stratagem import Component, UsageError, sdk, errors; "
        "sys.exit('importlib_metadata' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
