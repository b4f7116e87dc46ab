"""What programs of Lightning can't have here is refused by name, and never passed over."""

from __future__ import annotations

import pytest
import stratagem_lightning as L
import torch
from stratagem_lightning.fabric.loggers import CSVLogger as FabricCSVLogger
from stratagem_lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    TQDMProgressBar,
)
from stratagem_lightning.pytorch.cli import LightningCLI, SaveConfigCallback
from stratagem_lightning.pytorch.loggers import CSVLogger, Logger
from stratagem_lightning.pytorch.loggers.logger import rank_zero_experiment
from torch.utils.data import DataLoader, TensorDataset

from stratagem.errors import ConfigError, StratagemError

TRAINER = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "enable_model_summary": False}


class Net(L.LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return loader()


def loader(count: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(count, 4)), batch_size=2)


def test_an_override_that_nothing_calls_is_refused() -> None:
    class Bar(TQDMProgressBar):
        def init_train_tqdm(self):
            raise AssertionError

    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "{epoch}-last"

    with pytest.raises(ConfigError, match="overrides init_train_tqdm, which nothing calls here: get_metrics"):
        L.Trainer(callbacks=[Bar()], **{**TRAINER, "enable_progress_bar": True})
    with pytest.raises(ConfigError, match="CHECKPOINT_NAME_LAST"):
        L.Trainer(callbacks=[Named()], **TRAINER)
    with pytest.raises(AttributeError):
        ModelCheckpoint().CHECKPOINT_NAME_LAST = "newest"


def test_a_limit_that_leaves_no_batch_is_refused(tmp_path) -> None:
    trainer = L.Trainer(limit_val_batches=0.1, default_root_dir=tmp_path, logger=False, **TRAINER)
    with pytest.raises(ConfigError, match=r"a limit of 0\.1 leaves none of the 4 batches.*limit_val_batches"):
        trainer.fit(Net(), loader(), loader())


def test_steps_that_take_the_loader_are_refused(tmp_path) -> None:
    class Reading(Net):
        def training_step(self, dataloader_iter):
            return None

    trainer = L.Trainer(default_root_dir=tmp_path, logger=False, **TRAINER)
    with pytest.raises(ConfigError, match="training_step takes dataloader_iter"):
        trainer.fit(Reading(), loader())


def test_hparams_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no hparams_file"):
        Net.load_from_checkpoint("anywhere", hparams_file="hparams.yaml")
    with pytest.raises(ConfigError, match="takes no map_location and no hparams_file"):
        Data.load_from_checkpoint("anywhere", hparams_file="hparams.yaml")


def test_the_steps_of_a_fit_arent_guessed_before_its_loaders_are_there(tmp_path) -> None:
    class Early(Net):
        def setup(self, stage):
            assert self.trainer.training
            assert self.trainer.state.status == "running"
            _ = self.trainer.estimated_stepping_batches

    with pytest.raises(StratagemError, match="in configure_optimizers or later"):
        L.Trainer(default_root_dir=tmp_path, logger=False, **TRAINER).fit(Early(), loader())


def test_sixteen_bits_on_a_cpu_are_bfloat16() -> None:
    with pytest.warns(UserWarning, match="as 'bf16-mixed'"):
        assert L.Trainer(precision="16-mixed", **TRAINER).precision == "bf16-mixed"
    with pytest.warns(UserWarning, match="as 'bf16-mixed'"):
        assert L.Fabric(accelerator="cpu", devices=1, precision=16).config.precision == "bf16-mixed"


def test_loggers_have_lightnings_folders(tmp_path) -> None:
    assert CSVLogger(tmp_path).root_dir == str(tmp_path / "lightning_logs")
    assert FabricCSVLogger(root_dir=tmp_path, name="x").root_dir == str(tmp_path / "x")
    with pytest.raises(TypeError):
        CSVLogger()


def test_a_loggers_finalize_is_called(tmp_path) -> None:
    class Own(Logger):
        def __init__(self):
            self.reported = []

        @property
        @rank_zero_experiment
        def experiment(self):
            return self

        def log_metrics(self, metrics, step=None):
            self.reported.append(step)

        def finalize(self, status):
            self.reported.append(status)

    logger = Own()
    trainer = L.Trainer(
        max_epochs=1, log_every_n_steps=2, logger=logger, default_root_dir=tmp_path, **TRAINER
    )
    trainer.fit(Net(), loader())
    assert logger.experiment is logger
    assert logger.reported == [2, 4, "success"]


def test_sizes_are_known_before_a_run() -> None:
    trainer = L.Trainer(
        **{**TRAINER, "devices": 2}, strategy="ddp", accumulate_grad_batches=3, num_sanity_val_steps=0
    )
    assert (trainer.num_devices, trainer.num_nodes, trainer.world_size) == (2, 1, 2)
    assert (trainer.accumulate_grad_batches, trainer.num_sanity_val_steps) == (3, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonargparse's, of its own names
def test_a_command_lines_own_callbacks_and_configurations(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    reported = []

    class Own(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_lightning_class_args(EarlyStopping, "early")
            parser.set_defaults({"early.monitor": "val_loss", "early.patience": 7})

    class Elsewhere(SaveConfigCallback):
        def save_config(self, trainer, pl_module, stage):
            reported.append(stage)

    (tmp_path / "c.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: lightning.pytorch.callbacks.LearningRateMonitor\n"
    )
    flags = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.max_epochs=1"]
    made = Own(
        Net,
        Data,
        save_config_callback=Elsewhere,
        save_config_kwargs={"save_to_log_dir": False},
        args=[
            "fit",
            "--config=c.yaml",
            "--trainer.logger=CSVLogger",
            "--trainer.logger.save_dir=logs",
            *flags,
        ],
    )
    assert made.trainer.early_stopping_callback.patience == 7
    assert any(isinstance(each, LearningRateMonitor) for each in made.trainer.callbacks)
    assert reported == ["fit"]
    assert (tmp_path / "logs/lightning_logs/version_0/metrics.csv").exists()


def test_a_cut_epoch_is_resumed_at_the_next_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = L.Trainer(max_steps=6, max_epochs=-1, callbacks=[ModelCheckpoint("cut")], logger=False, **TRAINER)
    first.fit(Net(), loader(), loader())
    assert (first.current_epoch, first.global_step) == (2, 6)
    second = L.Trainer(max_epochs=3, logger=False, **TRAINER)
    second.fit(Net(), loader(), loader(), ckpt_path="cut/epoch=1-step=6.ckpt")
    assert (second.current_epoch, second.global_step) == (3, 10)
