"""Without FairScale: both strategies are listed, and refused in a sentence with what to type."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from stratagem_fairscale import FairScalePipeStrategy, FairScaleShardedStrategy, library

from stratagem import ConfigError, RunConfig
from stratagem.errors import BrokenPluginError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.runs import assemble

INSTALL = r"pip install fairscale==0\.4\.13"
BOTH = {"fairscale_sharded": FairScaleShardedStrategy, "fairscale_pipe": FairScalePipeStrategy}


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    component = type(load_catalogue().find("strategy", "fairscale_sharded"))
    monkeypatch.setattr(component, "missing", lambda self: list(self.requires))
    monkeypatch.setattr(library, "find_spec", lambda name: None)


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("name", BOTH)
def test_it_is_listed_and_refused_with_what_to_type(name: str) -> None:
    component = load_catalogue().find("strategy", name)
    assert (component.missing(), component.install_hint) == (["fairscale"], INSTALL.replace("\\", ""))
    with pytest.raises(BrokenPluginError, match=f"needs fairscale, which isn't installed: {INSTALL}"):
        assemble(RunConfig(name, accelerator="cpu", devices=2))
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=f"needs the package fairscale, which isn't installed: {INSTALL}"):
        BOTH[name]()
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] == "fairscale"}


def test_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: object())
    monkeypatch.setattr(library.importlib_metadata, "version", lambda name: "0.4.6")
    with pytest.warns(UserWarning, match=r"fairscale 0\.4\.6 is another than .* tried with, 0\.4\.13"):
        FairScaleShardedStrategy()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            FairScaleShardedStrategy,
            {"reduce_buffer_size": -1},
            "reduce_buffer_size=-1 is no number of elements",
        ),
        (FairScaleShardedStrategy, {"reduce_buffer_size": 8, "reduce_fp16": True}, "leave one of them out"),
        (FairScaleShardedStrategy, {"start_method": "thread"}, "start_method='thread' must be one of"),
        (FairScalePipeStrategy, {"checkpoint": "some"}, "checkpoint='some' must be one of 'never'"),
        (FairScalePipeStrategy, {"chunks": 0}, "chunks=0 must be at least 1"),
        (FairScalePipeStrategy, {"balance": [2, 0]}, "must give each device at least 1 layer"),
    ],
)
def test_keywords_are_checked_first(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**options)
