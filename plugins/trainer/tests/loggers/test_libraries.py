"""Loggers that hand rows to libraries: each with the real one, offline; those that aren't installed are skipped."""

import json
import os
import time
import zipfile

import pytest
from callback_nets import Net, trainer
from stratagem_trainer.loggers import (
    CometLogger,
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)
from stratagem_trainer.loggers.named import checked_loggers

import stratagem
from stratagem.errors import BrokenPluginError, ConfigError, UnknownNameError

pytestmark = pytest.mark.filterwarnings("ignore")


class Logs(Net):
    """Asks for the library's own object on every rank."""

    def on_train_start(self):
        self.print_kind = type(self.trainer.loggers[0].experiment).__name__
        if self.trainer.global_rank:
            assert self.trainer.loggers[0].experiment.anything("at all").works


def run_of(logger, folder, strategy="single", devices=1, module=None):
    module = Logs(8 // devices) if module is None else module
    trainer(strategy, folder, devices=devices, logger=logger, log_every_n_steps=1, max_epochs=1).fit(module)


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


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_tensorboard_has_folders_for_versions_and_other_ranks_have_an_object_that_does_nothing(
    tmp_path, strategy, devices
):
    pytest.importorskip("tensorboard")
    for version in range(2):
        logger = TensorBoardLogger(tmp_path / "tb", name="net")
        run_of(logger, tmp_path / f"run{version}", strategy, devices)
        assert os.listdir(tmp_path / "tb" / "net" / f"version_{version}")


def test_csv_has_folders_for_versions_and_hyperparameters_beside(tmp_path):
    logger = CSVLogger(tmp_path / "csv", name="net", version="a", prefix="p")
    logger.open(str(tmp_path), {})
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": 1.0}, step=3)
    logger.finalize("success")
    assert logger.log_dir == str(tmp_path / "csv" / "net" / "a")
    assert (tmp_path / "csv/net/a/metrics.csv").read_text() == "step,epoch,p-loss\n3,0,1.0\n"
    assert (tmp_path / "csv/net/a/hparams.yaml").read_text() == "lr: 0.1\n"


def test_a_logger_of_ones_own_may_take_metrics_row_by_row_and_is_muted_on_other_ranks(tmp_path):
    class Own(Logger):
        def __init__(self):
            self.rows = []

        def log_metrics(self, metrics, step=None):
            self.rows.append((step, metrics["epoch"], metrics.get("train_loss") is not None))

    logger = Own()
    run_of(logger, tmp_path, module=Net())
    assert logger.rows[:4] == [(1, 0, True), (2, 0, True), (3, 0, True), (4, 0, True)]
    trainer("single", tmp_path / "b", logger=(other := Own())).validate(Net())
    assert other.rows == [(0, 0, False)]
    nothing = Own().mute().experiment
    nothing.config["a"] = nothing.anything(1).at.all
    with pytest.raises(NotImplementedError, match="neither write nor log_metrics"):
        Logger().log_metrics({})


class Evaluated(Net):
    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    test_dataloader = Net.train_dataloader


def fitted_and_tested(logger, folder, devices):
    strategy = "ddp" if devices > 1 else "single"
    run = trainer(strategy, folder, devices=devices, logger=logger, log_every_n_steps=1, max_epochs=1)
    module = Evaluated(8 // devices)
    run.fit(module)
    version = logger.version
    run.test(module)
    assert logger.version == version
    assert version is not None
    return version


@pytest.mark.parametrize("devices", [1, 2])
def test_a_test_after_a_fit_is_logged_to_the_fits_run(tmp_path, monkeypatch, devices):
    pytest.importorskip("tensorboard")
    csv, board = CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")
    fitted_and_tested(csv, tmp_path / "a", devices)
    fitted_and_tested(board, tmp_path / "b", devices)
    assert os.listdir(tmp_path / "csv/logs") == os.listdir(tmp_path / "board/logs") == ["version_0"]
    header, *_, last = (tmp_path / "csv/logs/version_0/metrics.csv").read_text().splitlines()
    assert last.split(",")[header.split(",").index("test_loss")]
    assert csv.log_dir == str(tmp_path / "csv/logs/version_0")


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


def test_a_test_without_a_fit_is_logged_too(tmp_path):
    logger = CSVLogger()
    run = stratagem.Trainer(logger=logger, default_root_dir=tmp_path, enable_progress_bar=False)
    run.test(Evaluated())
    (row,) = (tmp_path / "runs").glob("*-Evaluated/metrics.csv")
    assert row.read_text().startswith("step,epoch,test_loss\n0,0,")
    assert logger.log_dir == str(row.parent)


def test_names_are_looked_up_and_a_missing_library_is_one_sentence(monkeypatch):
    (logger,) = checked_loggers("csv")
    assert isinstance(logger, CSVLogger)
    assert [type(each) for each in checked_loggers(["csv", logger])] == [CSVLogger, CSVLogger]
    assert checked_loggers(None) is True
    assert checked_loggers(False) is False
    with pytest.raises(UnknownNameError, match="no logger is called 'cvs'; nearest: csv"):
        checked_loggers("cvs")
    monkeypatch.setattr("stratagem.plugin.component._is_installed", lambda module: False)
    with pytest.raises(
        BrokenPluginError, match=r"'wandb' .* needs wandb, .*: pip install \"stratagem-trainer"
    ):
        checked_loggers("wandb")
