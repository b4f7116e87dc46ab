"""The callbacks and the CSV logger under the real trainer, in one process."""

import csv
import os

import pytest
import torch
from stratagem_callbacks import TrainingCurve
from stratagem_trainer.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from stratagem_trainer.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from stratagem import Module, Trainer
from stratagem.errors import ConfigError

STEPS_PER_EPOCH = 5


class Mean(Module):
    """Fits one number; its validation loss is what the test scripts say, epoch by epoch."""

    def __init__(self, losses, fail_in=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.losses, self.fail_in = losses, fail_in

    def training_step(self, batch, batch_idx):
        if self.trainer.current_epoch == self.fail_in and batch_idx == 2:
            raise RuntimeError("pulled the plug")
        loss = ((batch[0] * self.weight) ** 2).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.losses[self.trainer.current_epoch], prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


@pytest.fixture
def fit(tmp_path):
    def run(module, *callbacks, ckpt_path=None, **settings):
        data = DataLoader(TensorDataset(torch.ones(4 * STEPS_PER_EPOCH, 1)), batch_size=4)
        settings = {
            "max_epochs": len(module.losses),
            "run_dir": str(tmp_path),
            "log_every_n_steps": 1,
            **settings,
        }
        trainer = Trainer(
            accelerator="cpu", devices=1, strategy="single", callbacks=list(callbacks), **settings
        )
        trainer.fit(module, data, data, ckpt_path=ckpt_path)
        return trainer

    return run


def test_loggers_get_a_checkpoint_once_it_is_complete(fit, tmp_path):
    class Uploads(CSVLogger):
        def after_save_checkpoint(self, checkpoint_callback):
            path = checkpoint_callback.best_model_path
            reported.append((os.path.basename(path), os.path.isdir(path)))

    reported = []
    rare = ModelCheckpoint(dirpath="rare", every_n_epochs=5, save_last=False)
    fit(Mean([3.0, 2.0]), ModelCheckpoint(), rare, logger=Uploads())
    assert reported == [("epoch=0-step=5", True), ("epoch=1-step=10", True)]


def rows(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


def test_a_fit_keeps_the_best_stops_and_logs(fit, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    best, stop = (
        ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}-{val_loss:.1f}"),
        EarlyStopping("val_loss", patience=2),
    )
    fit(Mean([3.0, 1.0, 2.0, 2.0, 0.0]), best, stop, LearningRateMonitor(), TrainingCurve())
    assert stop.stopped_epoch == 3
    assert best.best_model_path == str(tmp_path / "checkpoints" / "1-1.0")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["1-1.0", "3-2.0", "last"]
    assert (tmp_path / "curves.png").exists()
    logged = rows(tmp_path)
    assert [row["val_loss"] for row in logged if "val_loss" in row] == [3.0, 1.0, 2.0, 2.0]
    assert [row["step"] for row in logged if "train_loss" in row] == list(range(1, 21))
    rates = {int(row["epoch"]): row["lr-SGD"] for row in logged if "lr-SGD" in row}
    assert rates == pytest.approx({0: 0.1, 1: 0.05, 2: 0.025, 3: 0.0125})
    shown = capsys.readouterr()
    assert "epoch 4/5  step 20" in shown.out
    assert "\x1b" not in shown.out
    assert "Stopping in epoch 4 at step 20" in shown.err


def test_a_run_that_died_goes_on_with_its_ranking_and_its_file(fit, tmp_path):
    losses = [1.0, 3.0, 2.0, 0.5]

    def best():
        return ModelCheckpoint(monitor="val_loss", auto_insert_metric_name=False, filename="{epoch}")

    with pytest.raises(RuntimeError, match="pulled the plug"):
        fit(Mean(losses, fail_in=2), best())
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["0", "1", "last"]
    assert rows(tmp_path)[-1]["step"] == 2 * STEPS_PER_EPOCH + 2
    resumed = best()
    fit(Mean(losses), resumed, ckpt_path=str(tmp_path / "checkpoints" / "last"))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["3", "last"]
    assert resumed.best_model_score == 0.5
    logged = rows(tmp_path)
    assert [row["step"] for row in logged if "train_loss" in row] == list(range(1, 4 * STEPS_PER_EPOCH + 1))
    assert [row["val_loss"] for row in logged if "val_loss" in row] == losses


def test_a_fit_limited_by_steps_leaves_a_checkpoint_and_a_line(fit, tmp_path, capsys):
    fit(Mean([1.0]), ModelCheckpoint(), max_steps=3)
    assert (tmp_path / "checkpoints" / "last").exists()
    assert "step 3" in capsys.readouterr().out


def test_checkpoints_by_steps_are_ranked_by_their_own_validation(fit):
    best = ModelCheckpoint(
        monitor="val_loss",
        every_n_train_steps=5,
        save_top_k=2,
        save_last=False,
        auto_insert_metric_name=False,
        filename="{step}",
    )
    fit(Mean([3.0, 1.0, 2.0]), best)
    assert [(entry.step, entry.score) for entry in best.kept] == [(10, 1.0), (15, 2.0)]


@pytest.mark.parametrize("dirpath", ["/dev/null", "/proc/self/checkpoints", "taken/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path, monkeypatch, dirpath):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/taken").touch()
    module = Mean([1.0])
    trainer = Trainer(
        strategy="single",
        accelerator="cpu",
        run_dir=tmp_path / "run",
        callbacks=[ModelCheckpoint(dirpath=dirpath)],
        enable_progress_bar=False,
    )
    data = DataLoader(TensorDataset(torch.ones(4, 1)))
    with pytest.raises(ConfigError, match=r"ModelCheckpoint's dirpath .* can't be"):
        trainer.fit(module, data, data)
    assert trainer.global_step == 0
