"""Runs with kept steps, each made once per session, and where worker processes find the model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_runs import NET, Trained, command


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train with `--use capsule` on one rank or two, and return the folder of the run."""
    made: dict[tuple[str, ...], Path] = {}

    def train(strategy: str, *settings: str, fails: bool = False) -> Path:
        key = (strategy, *settings)
        if key not in made:
            folder = tmp_path_factory.mktemp("kept")
            devices = "1" if strategy == "single" else "2"
            sets = [word for setting in settings for word in ("--set", setting)]
            fit = ["fit", NET, "--strategy", strategy, "--accelerator", "cpu", "--devices", devices, *sets]
            fit += ["--use", "capsule", "--max-epochs", "2", "--run-dir", str(folder / "run")]
            done = command(*fit, KEPT_NET_STATES=str(folder / "states"))
            assert (done.returncode == 1) == fails, done.stderr[-3000:]
            made[key] = folder / "run"
        return made[key]

    return train
