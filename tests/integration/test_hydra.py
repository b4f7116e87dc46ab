"""examples/hydra_digits.py: what Hydra composes trains, and `stratagem fit --config` repeats it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hydra", reason="make test-libraries")

ROOT = Path(__file__).parents[2]
PROGRAM = "examples/hydra_digits.py"
SHORT = ("trainer.max_epochs=1", "model.hidden=8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=240
    )


def losses(run_dir: Path) -> list[str]:
    rows = csv.DictReader((run_dir / "metrics.csv").read_text().splitlines())
    return [row["val_loss"] for row in rows if row["val_loss"]]


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_what_it_composes_trains_and_is_repeated(folder: Path, strategy: str, devices: int) -> None:
    chosen = (f"strategy={strategy}", f"devices={devices}", "hydra.run.dir=out")
    done = run(folder, PROGRAM, *chosen, *SHORT)
    assert done.returncode == 0, done.stderr
    composed = folder / "out/.hydra/config.yaml"
    assert "${trainer.max_epochs}" in composed.read_text()
    assert len(losses(folder / "out")) == 1
    words = ["-m", "stratagem", "fit", "--config", str(composed), "--run-dir", "again"]
    repeated = run(folder, *words)
    assert repeated.returncode == 0, repeated.stderr
    assert losses(folder / "again") == losses(folder / "out")


def test_a_multirun_trains_one_after_the_other(folder: Path) -> None:
    done = run(folder, PROGRAM, "--multirun", "model.lr=0.001,0.01", "hydra.sweep.dir=out", *SHORT)
    assert done.returncode == 0, done.stderr
    one, two = losses(folder / "out/0"), losses(folder / "out/1")
    assert len(one) == len(two) == 1
    assert one != two


def test_a_setting_that_does_not_exist_is_one_sentence(folder: Path) -> None:
    done = run(folder, PROGRAM, "hydra.run.dir=out", "+trainer.max_epoch=3", *SHORT)
    assert done.returncode != 0
    assert "max_epoch" in done.stderr.splitlines()[-1]
    done = run(folder, PROGRAM, "hydra.run.dir=out", "+model.widht=3", *SHORT)
    assert done.returncode != 0
    words = ["-m", "stratagem", "fit", "--config", "out/.hydra/config.yaml", "--run-dir", "again"]
    assert "Digits has no setting 'model.widht'" in run(folder, *words).stderr.splitlines()[-1]
