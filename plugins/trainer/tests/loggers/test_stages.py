"""What every logger does over a run's stages: folders for versions, rows by name, one run for a fit and its test."""

import os

import pytest
from callback_nets import Net, trainer
from logged_runs import Evaluated, fitted_and_tested, run_of
from stratagem_trainer.loggers import CSVLogger, Logger, TensorBoardLogger
from stratagem_trainer.loggers.named import checked_loggers

import stratagem
from stratagem.errors import UnknownNameError

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_a_own_logger_may_take_metrics_row_by_row_and_is_muted_on_other_ranks(tmp_path):
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


def test_a_test_without_a_fit_is_logged_too(tmp_path):
    logger = CSVLogger()
    run = stratagem.Trainer(logger=logger, default_root_dir=tmp_path, enable_progress_bar=False)
    run.test(Evaluated())
    (row,) = (tmp_path / "runs").glob("*-Evaluated/metrics.csv")
    assert row.read_text().startswith("step,epoch,test_loss\n0,0,")
    assert logger.log_dir == str(row.parent)


def test_names_are_looked_up():
    (logger,) = checked_loggers("csv")
    assert isinstance(logger, CSVLogger)
    assert [type(each) for each in checked_loggers(["csv", logger])] == [CSVLogger, CSVLogger]
    assert checked_loggers(None) is True
    assert checked_loggers(False) is False
    with pytest.raises(UnknownNameError, match="no logger is called 'cvs'; nearest: csv"):
        checked_loggers("cvs")
