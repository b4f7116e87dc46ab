"""What an attempt leaves for the next, in the folder that its launcher names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stratagem_launch.restart_states import (
    LAUNCH_VARIABLE,
    can_save_restart_state,
    restart_state,
    save_restart_state,
)


def test_without_a_launcher_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    save_restart_state("step", {"step": 1})
    assert (can_save_restart_state(), restart_state("step"), os.listdir(tmp_path)) == (False, None, [])


def test_the_last_state_of_a_name_is_read_and_appears_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LAUNCH_VARIABLE, str(tmp_path))
    assert (can_save_restart_state(), restart_state("step")) == (True, None)
    for step in (1, 2):
        save_restart_state("step", {"step": step, "name": "ß"})
    save_restart_state("other", {})
    assert (restart_state("step"), restart_state("other")) == ({"step": 2, "name": "ß"}, {})
    assert sorted(os.listdir(tmp_path)) == ["restart.other", "restart.step"]
