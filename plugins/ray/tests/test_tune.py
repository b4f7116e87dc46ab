"""`TuneCallback` in trials of Ray Tune, set up as docs/guides/sweeps.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.tune", reason="needs ray[tune]: make test-ray")
pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]

SUPPORT = Path(__file__).parents[3] / "tests" / "support"
PROGRAM = """
import json
import os
import sys

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train(config):
    import stratagem
    from searched import Level
    from stratagem_ray.tune import TuneCallback

    trainer = stratagem.Trainer(
        strategy=config["strategy"], accelerator="cpu", devices=config["devices"], max_epochs=4, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, run_dir="run",
        callbacks=[TuneCallback(["val_loss", "step"], save_checkpoints=True)],
    )
    kept = tune.get_checkpoint()
    if kept is None:
        trainer.fit(Level(config["level"]))
    else:
        with kept.as_directory() as folder:
            trainer.fit(Level(config["level"]), ckpt_path=folder)


def main(strategy, devices, path, storage):
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    space = {"level": tune.grid_search([0.125, 0.25, 0.5, 0.75]), "strategy": strategy, "devices": devices}
    tuner = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="val_loss", mode="min", max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    results = tuner.fit()
    found = []
    for result in results:
        with result.checkpoint.as_directory() as folder:
            kept = sorted(os.listdir(folder))
        found.append({
            "level": result.config["level"], "val_loss": result.metrics["val_loss"], "step": result.metrics["step"],
            "reports": result.metrics["training_iteration"], "error": str(result.error or ""), "kept": kept,
        })
    ray.shutdown()
    with open(path, "w") as file:
        json.dump({"trials": found, "best": results.get_best_result().config["level"]}, file)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
"""


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_a_scheduler_ends_trials_by_what_rank_0_reports(tmp_path: Path, strategy: str, devices: int) -> None:
    found = ran(tmp_path, strategy, str(devices))
    trials = {trial["level"]: trial for trial in found["trials"]}
    assert {trial["error"] for trial in trials.values()} == {""}
    assert [trial["val_loss"] for trial in trials.values()] == list(trials)
    assert {level: trial["reports"] for level, trial in trials.items()} == {
        0.125: 4,
        0.25: 1,
        0.5: 1,
        0.75: 1,
    }
    steps = 4 // devices
    assert [trials[0.125]["step"], trials[0.25]["step"]] == [4 * steps, steps]
    assert found["best"] == 0.125
    assert all(trial["kept"] for trial in trials.values())


def ran(tmp_path: Path, *words: str) -> dict[str, Any]:
    (tmp_path / "tuned.py").write_text(PROGRAM)
    paths = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    said = tmp_path / "said.json"
    done = subprocess.run(
        [sys.executable, str(tmp_path / "tuned.py"), *words, str(said), str(tmp_path / "storage")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(said.read_text())
    return found


def test_outside_of_a_trial_it_is_refused() -> None:
    from stratagem_ray.tune import TuneCallback

    import stratagem
    from stratagem.errors import ConfigError

    trainer = stratagem.Trainer(accelerator="cpu", devices=1, callbacks=[TuneCallback()], logger=False)
    with pytest.raises(ConfigError, match="this process runs none: call fit in the function"):
        trainer.fit(stratagem.Module())
    with pytest.raises(ConfigError, match="TuneCallback got metrics="):
        TuneCallback([3])  # type: ignore[list-item]  # this is the mistake
