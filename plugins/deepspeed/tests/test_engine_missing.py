"""Without the engine, or with one that is too old, the error says what to do."""

from __future__ import annotations

import importlib_metadata
import pytest
from stratagem_deepspeed import DeepSpeedStrategy, library

from stratagem import ConfigError, RunConfig
from stratagem.errors import BrokenPluginError
from stratagem.installed.catalogue import load_catalogue
from stratagem.plugin.component import Component
from stratagem.resolve.run import assemble


@pytest.mark.without_engine
def test_listed_and_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "missing", lambda self: list(self.requires))
    component = load_catalogue().find("strategy", "deepspeed_stage_2")
    assert component.missing() == ["deepspeed"]
    with pytest.raises(BrokenPluginError, match=r"pip install 'stratagem\[deepspeed\]'"):
        assemble(RunConfig("deepspeed_stage_2", accelerator="cpu", devices=2))


@pytest.mark.without_engine
def test_an_object_is_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isn't installed: pip install 'stratagem\[deepspeed\]'"):
        DeepSpeedStrategy()


def test_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib_metadata, "version", lambda name: "0.18.9")
    with pytest.raises(ConfigError, match=r"0\.19\.8 or newer, and 0\.18\.9 is installed"):
        DeepSpeedStrategy()


def test_newer_than_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib_metadata, "version", lambda name: "0.21.0")
    with pytest.warns(UserWarning, match="newer than what this strategy was tried with"):
        DeepSpeedStrategy()
