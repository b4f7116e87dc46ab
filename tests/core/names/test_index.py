"""The index of known plugins is read where something is missing, and the core does without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import importlib_metadata
import pytest

from stratagem.errors import ConfigError, UnknownNameError
from stratagem.installed.catalogue import Catalogue
from stratagem.names.index import Index, known_plugins
from stratagem.resolve.environment import choose_environment
from stratagem.resolve.launcher import installed_launcher
from stratagem.runtime.script_flags import run_config


@pytest.fixture
def without_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an installation of the core and a few plugins has."""
    known_plugins.cache_clear()
    monkeypatch.setattr(importlib_metadata, "entry_points", lambda **group: ())
    yield
    known_plugins.cache_clear()


@pytest.mark.usefixtures("without_index")
def test_without_an_index_hints_are_general() -> None:
    assert known_plugins() == Index()
    nothing = Catalogue(())
    with pytest.raises(UnknownNameError, match="no strategy is called 'ddp'; none is installed"):
        nothing.find("strategy", "ddp")
    with pytest.raises(UnknownNameError, match=r"no launcher is installed: pip install stratagem$"):
        installed_launcher(nothing)
    with pytest.raises(ConfigError, match="Runtime has no argument 'gpus'"):
        run_config("Runtime", (), gpus=2)


@pytest.mark.usefixtures("without_index")
def test_processes_of_a_launcher_are_refused_without_an_index_too() -> None:
    from stratagem.plugin.own import stratagem_components

    own = Catalogue(tuple(each for each in stratagem_components() if each.kind == "environment"))
    with pytest.raises(
        UnknownNameError, match=r"PMI_SIZE='2' says .*: no installed environment reads it, so install"
    ):
        choose_environment(own, "auto", {"PMI_SIZE": "2"})


def test_nothing_is_read_where_nothing_is_missing() -> None:
    code = (
        "import sys; from stratagem.sdk.runs import assemble, run_config; assemble(run_config('Runtime', (), "
        "strategy='ddp', accelerator='cpu', devices=2)); sys.exit('stratagem_facade.index' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
