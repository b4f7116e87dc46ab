"""Extensions that the engine compiles: what is missing is reported, and what was left behind is removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from stratagem_deepspeed import DeepSpeedStrategy, builds

from stratagem import ConfigError, RunConfig
from stratagem.resolve.run import assemble

ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}


@pytest.fixture(autouse=True)
def _empty_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("keywords", "names"),
    [
        ({"stage": 2}, []),
        ({"stage": 2, "config": ADAM}, ["FusedAdam"]),
        ({"stage": 2, "config": ADAM, "offload_optimizer": True}, ["CPUAdam"]),
        ({"stage": 2, "config": {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}}, []),
        ({"stage": 2, "config": {"optimizer": {"type": "SGD"}}}, []),
    ],
    ids=str,
)
def test_what_is_compiled(keywords: dict[str, Any], names: list[str]) -> None:
    assert builds.needed(DeepSpeedStrategy(**keywords).configuration) == names


def test_nvme_is_compiled(tmp_path: Path) -> None:
    strategy = DeepSpeedStrategy(stage=3, remote_device="nvme", nvme_path=str(tmp_path))
    assert builds.needed(strategy.configuration) == ["AsyncIO"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler 'no-such-compiler'"):
        assemble(RunConfig("deepspeed", {"config": ADAM}, accelerator="cpu", devices=1))


def test_no_libaio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builds, "_links", lambda compiler: False)
    options = {"stage": 3, "remote_device": "nvme", "nvme_path": str(tmp_path)}
    with pytest.raises(ConfigError, match="apt install libaio-dev"):
        assemble(RunConfig("deepspeed", options, accelerator="cpu", devices=1))


def test_what_is_made_needs_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "fused_adam").mkdir()
    (tmp_path / "fused_adam" / "fused_adam.so").touch()
    assemble(RunConfig("deepspeed", {"config": ADAM}, accelerator="cpu", devices=1))


def test_ninja_is_that_of_this_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ninja

    other = tmp_path / "ninja"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with builds._with_own_ninja():
        assert shutil.which("ninja") == str(Path(ninja.BIN_DIR, "ninja"))
    assert shutil.which("ninja") == str(other)


def test_a_lock_without_a_holder_is_removed(tmp_path: Path) -> None:
    for name in ("cpu_adam", "async_io"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    with open(tmp_path / "async_io" / "lock"):
        assert builds.remove_forgotten_locks() == [tmp_path / "cpu_adam" / "lock"]
        assert (tmp_path / "async_io" / "lock").exists()
    assert builds.remove_forgotten_locks() == [tmp_path / "async_io" / "lock"]
