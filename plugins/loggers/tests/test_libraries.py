"""Loggers that hand rows to libraries: each with the real one, offline; those that aren't installed are skipped."""

import json
import os
import subprocess
import sys
import time
import zipfile

import pytest
from logged_runs import Logs, fitted_and_tested, run_of
from stratagem_loggers import AimLogger, CometLogger, MLFlowLogger, TrackioLogger, WandbLogger
from stratagem_trainer.loggers.named import checked_loggers

from stratagem.errors import BrokenPluginError, ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "240")  # wandb's process, on a busy machine
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = WandbLogger(project="mine", name="first", offline=True, prefix="p")
    module = Logs()
    run_of(logger, tmp_path, module=module)
    assert module.print_kind == "Run"
    assert logger.name == "mine"
    (folder,) = [name for name in os.listdir(tmp_path / "wandb") if name.startswith("offline-run")]
    assert folder.endswith(logger.version)
    content = (tmp_path / "wandb" / folder / f"run-{logger.version}.wandb").read_bytes()
    assert b"p-train_loss" in content
    assert b"trainer/global_step" in content
    with pytest.raises(ConfigError, match="log_model=True"):
        WandbLogger(log_model=True)


def test_mlflow_keeps_a_run_in_a_folder(tmp_path):
    pytest.importorskip("mlflow.tracking", exc_type=ImportError)
    logger = MLFlowLogger("mine", run_name="first", tags={"a": "b"}, save_dir=tmp_path / "store")
    module = Logs()
    run_of(logger, tmp_path / "run", module=module)
    assert module.print_kind == "MlflowClient"
    run = logger.experiment.get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["a"] == "b"
    assert run.data.params["module"] == "Logs"
    history = logger.experiment.get_metric_history(logger.run_id, "train_loss")
    assert [metric.step for metric in history] == [1, 2, 3, 4]


def test_comet_keeps_an_experiment_offline(tmp_path):
    pytest.importorskip("comet_ml")
    logger = CometLogger(api_key="0" * 25, project="mine", online=False)
    run_of(logger, tmp_path)
    (archive,) = (tmp_path / "comet").glob("*.zip")
    assert logger.version in archive.name
    with zipfile.ZipFile(archive) as opened:
        messages = opened.read("messages.json").decode()
    logged = [json.loads(line) for line in messages.splitlines()]
    assert any("train_loss" in json.dumps(message) for message in logged)


@pytest.fixture(scope="session")
def trackio_dir(tmp_path_factory):
    """Where trackio keeps its projects in this process: it reads the variable once."""
    os.environ["TRACKIO_DIR"] = str(tmp_path_factory.mktemp("trackio"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    pytest.importorskip("trackio")


def in_trackio(project, run, name):
    """Return steps and values of a metric, as trackio's own command prints them."""
    words = ["get", "metric", "--project", project, "--run", run, "--metric", name, "--json"]
    source = f"import sys, trackio.cli; sys.argv = ['trackio', *{words}]; trackio.cli.main()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return [(each["step"], each["value"]) for each in json.loads(done.stdout)["values"]]


def test_trackio_keeps_a_run_in_its_folder(tmp_path, trackio_dir):
    import trackio

    logger = TrackioLogger("mine", name="first", prefix="p")
    module = Logs()
    run_of(logger, tmp_path, module=module)
    assert module.print_kind == "Run"
    assert (logger.name, logger.version) == ("mine", "first")
    assert [step for step, _ in in_trackio("mine", "first", "p-train_loss")] == [1, 2, 3, 4]
    assert in_trackio("mine", "first", "epoch")[-1] == (4, 0.0)
    (kept,) = trackio.Api().runs("mine")
    assert kept.config["module"] == "Logs"


@pytest.mark.parametrize("devices", [1, 2])
def test_trackio_goes_on_with_the_fits_run(tmp_path, trackio_dir, devices):
    import trackio

    project = f"goes-on-{devices}"
    version = fitted_and_tested(TrackioLogger(project), tmp_path, devices)
    assert [step for step, _ in in_trackio(project, version, "train_loss")] == [1, 2, 3, 4]
    assert [step for step, _ in in_trackio(project, version, "test_loss")] == [4]
    (kept,) = trackio.Api().runs(project)
    assert kept.config["module"] == "Evaluated"


def in_aim(repo, run, name):
    """Return values of a metric, and what was noted of the run."""
    import aim

    opened = aim.Run(run, repo=str(repo), capture_terminal_logs=False, system_tracking_interval=None)
    (metric,) = [each for each in opened.metrics() if each.name == name]
    _, values = metric.values.sparse_list()
    noted = opened["config"]
    opened.close()
    return values, noted


def test_aim_keeps_a_run_in_a_folder(tmp_path):
    pytest.importorskip("aim")
    logger = AimLogger(tmp_path / "repo", "mine", run_name="first", prefix="p")
    module = Logs()
    run_of(logger, tmp_path / "run", module=module)
    assert module.print_kind == "Run"
    assert (logger.name, logger.save_dir) == ("mine", str(tmp_path / "repo"))
    values, noted = in_aim(tmp_path / "repo", logger.version, "p-train_loss")
    assert (len(values), noted["module"]) == (4, "Logs")


@pytest.mark.parametrize("devices", [1, 2])
def test_aim_goes_on_with_the_fits_run(tmp_path, devices):
    pytest.importorskip("aim")
    version = fitted_and_tested(AimLogger(tmp_path / "repo"), tmp_path / "run", devices)
    assert len(in_aim(tmp_path / "repo", version, "train_loss")[0]) == 4
    values, noted = in_aim(tmp_path / "repo", version, "test_loss")
    assert (len(values), noted["module"]) == (1, "Evaluated")


@pytest.mark.parametrize("devices", [1, 2])
def test_wandb_goes_on_with_the_fits_run(tmp_path, monkeypatch, devices):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "240")  # wandb's process, on a busy machine
    version = fitted_and_tested(WandbLogger(project="mine", offline=True), tmp_path, devices)
    runs = (tmp_path / "wandb").glob(f"offline-run-*-{version}*/run-{version}.wandb")
    # Of two that begin within a second, the later one's folder ends with "-1".
    fitted, tested = sorted(runs, key=lambda run: (len(run.parent.name), run.parent.name))
    until = time.monotonic() + 200  # wandb's process may write after it has answered
    while b"test_loss" not in tested.read_bytes():
        assert time.monotonic() < until, "the test's values aren't in the run's second file"
        time.sleep(0.1)
    assert b"test_loss" not in fitted.read_bytes()


def test_mlflow_goes_on_with_the_fits_run(tmp_path):
    pytest.importorskip("mlflow.tracking", exc_type=ImportError)
    logger = MLFlowLogger("mine", save_dir=tmp_path / "store")
    version = fitted_and_tested(logger, tmp_path / "run", 2)
    assert len(logger.experiment.get_metric_history(version, "train_loss")) == 4
    assert [metric.step for metric in logger.experiment.get_metric_history(version, "test_loss")] == [4]


def test_comet_goes_on_with_the_fits_experiment(tmp_path):
    pytest.importorskip("comet_ml")
    logger = CometLogger(api_key="0" * 25, project="mine", online=False)
    version = fitted_and_tested(logger, tmp_path, 1)
    archives = [each for each in (tmp_path / "comet").rglob("*.zip") if version in each.name]
    contents = [zipfile.ZipFile(each).read("messages.json") for each in archives]
    assert sorted(b"test_loss" in content for content in contents) == [False, True]


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr("stratagem.plugin.component._is_installed", lambda module: False)
    with pytest.raises(
        BrokenPluginError, match=r"'wandb' .* needs wandb, .*: pip install \"stratagem-loggers"
    ):
        checked_loggers("wandb")
