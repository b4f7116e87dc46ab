"""Plugins that were written for each plugin API so far, and never edited since, run on this core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem.sdk.catalogue import API_VERSION

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "examples/digits.py:Digits")
TRAINING = [
    "fit",
    DIGITS,
    "--strategy",
    "frozen",
    "--accelerator",
    "cpu",
    "--devices",
    "2",
    "--max-steps",
    "6",
]
CHECKS = ["parity", "accumulation", "mid_epoch", "other_world_size", "missing_losses"]


@pytest.fixture(params=range(1, API_VERSION + 1), ids=lambda version: f"api_{version}")
def stratagem(request, tmp_path):
    """Run `stratagem` where the plugin of that API is installed."""
    paths = [str(ROOT / f"tests/frozen/api_{request.param}"), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}

    def run(*words: str, code: int = 0) -> str:
        program = Path(sys.executable).with_name("stratagem")
        done = subprocess.run(
            [program, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_it_trains_with_its_extension_and_has_its_command(stratagem) -> None:
    assert "counted True" in stratagem(*TRAINING, "--use", "counted", "--set", "strategy.factor=0.5")
    assert "factor=-1.0 must be above 0" in stratagem(*TRAINING, "--set", "strategy.factor=-1", code=2)
    assert stratagem("thaw", "--degrees", "2") == "thawed by 2\n"


@pytest.mark.long
def test_it_conforms(stratagem) -> None:
    checks = [word for check in CHECKS for word in ("--check", check)]
    said = stratagem("conformance", "frozen", "--world-size", "2", "--json", *checks)
    (report,), _ = json.JSONDecoder().raw_decode(said)  # progress follows, from stderr
    assert {outcome["check"]: outcome["verdict"] for outcome in report["checks"]} == dict.fromkeys(
        CHECKS, "passed"
    )
