"""A step is repeated from batches that came from a device whose work runs late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kept_runs import CHOSEN, NET, command
from stratagem_sim.build import is_built

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


def test_batches_that_are_copied_late_are_kept_as_they_were(tmp_path: Path) -> None:
    late = {"STRATAGEM_SIM_DELAY": "late", "STRATAGEM_SIM_LATE_MS": "10000"}
    chosen = ("--set", CHOSEN.format(steps=[3, 5]), "--set", "model.in_place=true")
    on = ("--strategy", "single", "--accelerator", "sim", "--devices", "1", "--use", "capsule")
    run = str(tmp_path / "run")
    done = command("fit", NET, *on, *chosen, "--max-epochs", "1", "--run-dir", run, **late)
    assert done.returncode == 0, done.stderr[-3000:]
    for step in ("3", "5"):
        done = command("replay", run, "--json", "--step", step, **late)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        assert found["is_repeated"]
        assert found["losses"] == found["run_losses"]
