"""What is known, and refused, where Horovod isn't installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from stratagem_horovod import HorovodStrategy, build, library

from stratagem import ConfigError, RunConfig
from stratagem.errors import BrokenPluginError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.runs import assemble

INSTALL = "python -m stratagem_horovod.build"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    component = type(load_catalogue().find("strategy", "horovod"))
    monkeypatch.setattr(component, "missing", lambda self: list(self.requires))
    monkeypatch.setattr(library, "find_spec", lambda name: None)


@pytest.mark.usefixtures("missing")
def test_it_is_listed_and_refused_with_what_to_type() -> None:
    component = load_catalogue().find("strategy", "horovod")
    assert (component.missing(), component.install_hint) == (["horovod"], INSTALL)
    with pytest.raises(BrokenPluginError, match=f"needs horovod, which isn't installed: {INSTALL}"):
        assemble(RunConfig("horovod", accelerator="cpu", devices=2))
    with pytest.raises(ConfigError, match=f"needs the package horovod, which isn't installed: {INSTALL}"):
        HorovodStrategy()


@pytest.mark.usefixtures("missing")
def test_listing_it_and_making_an_object_import_nothing_of_it() -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigError):
        HorovodStrategy()
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] == "horovod"}


def test_one_built_without_pytorch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    with pytest.raises(ConfigError, match=f"was built without: {INSTALL}"):
        HorovodStrategy()


def test_keywords_are_checked_first() -> None:
    with pytest.raises(ConfigError, match="compression='bf16' must be \"fp16\" or left out"):
        HorovodStrategy(compression="bf16")
    with pytest.raises(ConfigError, match="start_method='thread' must be one of"):
        HorovodStrategy(start_method="thread")


def test_building_without_a_compiler_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"cmake, make, g\+\+ isn't installed"):
        build.main(["--keep", str(tmp_path)])
