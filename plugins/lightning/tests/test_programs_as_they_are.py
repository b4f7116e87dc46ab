"""What programs of Lightning do with its objects works, where a run goes on as it would there."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stratagem_lightning as L
import torch
from stratagem_lightning.pytorch.callbacks import ModelCheckpoint
from stratagem_lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from stratagem.errors import ConfigError, StratagemError

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
        self.validated = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).pow(2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += 1
        self.log("v", 1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(count: int = 8) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(4.0 * count).view(count, 4) / count), batch_size=2)


def trainer(folder: Path, **how: Any) -> Any:
    return L.Trainer(**{**QUIET, "logger": False, "max_epochs": 1, "default_root_dir": folder, **how})


def test_own_methods_named_like_hooks_are_only_warned_of(tmp_path: Path) -> None:
    class Own(Net):
        def on_every_batch(self) -> None: ...

        def configure_models(self) -> None: ...

        def on_exception(self, error: Any) -> None: ...

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader()

        def on_download(self) -> None: ...

    class Calls(L.Callback):
        def on_own_event(self) -> None: ...

    with pytest.warns(UserWarning, match="if your program calls it itself") as warned:
        trainer(tmp_path, callbacks=[Calls()]).fit(Own(), datamodule=Data())
    said = " ".join(str(each.message) for each in warned)
    names = ("on_every_batch", "configure_models", "on_exception", "on_download", "on_own_event")
    assert all(f" defines {name}," in said for name in names)


def test_limits_and_loggers_may_be_set_between_stages(tmp_path: Path) -> None:
    class Late(Net):
        def on_train_start(self) -> None:
            with pytest.raises(ConfigError, match="can't be set to 3 while a stage runs"):
                self.trainer.limit_val_batches = 3
            with pytest.raises(ConfigError, match="callback GradientAccumulationScheduler"):
                self.trainer.accumulate_grad_batches = 2
            with pytest.raises(ConfigError, match=r"trainer\.logger can't be set"):
                self.trainer.logger = None

    made, module = trainer(tmp_path, num_sanity_val_steps=0, limit_val_batches=0), Late()
    made.limit_val_batches = 1
    made.fit_loop.max_epochs = 3
    made.logger = CSVLogger(tmp_path, name="own")
    made.fit(module, loader(), loader())
    assert (module.validated, made.current_epoch, made.max_epochs, made.fit_loop.max_epochs) == (3, 3, 3, 3)
    assert (tmp_path / "own/version_0/metrics.csv").exists()
    made.loggers = []
    assert made.logger is None
    made.fit_loop.max_epochs += 1
    assert made.max_epochs == 4
    with pytest.raises(ConfigError, match=r"limit_val_batches=2\.0 must be"):
        made.limit_val_batches = 2.0
    with pytest.raises(AttributeError, match=r"fit_loop has max_epochs, .* and no 'epoch_progress'"):
        _ = made.fit_loop.epoch_progress
    with pytest.raises(AttributeError, match="and no 'restarting'"):
        made.fit_loop.restarting = True


def test_old_arguments_of_the_trainer_are_answered() -> None:
    for old, words in {
        "gpus": "gpus=2 is now called accelerator='cuda', devices=2",
        "tpu_cores": "tpu_cores=2 is now called accelerator='tpu'",
        "num_processes": "is now called accelerator='cpu', devices=2",
        "replace_sampler_ddp": "is now called use_distributed_sampler=2",
        "weights_summary": "it is now called enable_model_summary",
        "max_epoch": "Trainer has no argument 'max_epoch'; nearest: max_epochs",
    }.items():
        with pytest.raises(ConfigError, match=words):
            L.Trainer(**{old: 2})


def test_the_folder_of_checkpoints_is_known_from_the_fits_start(tmp_path: Path) -> None:
    seen = []

    class Reads(L.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(trainer.checkpoint_callback.dirpath)

    kept = ModelCheckpoint()
    assert kept.dirpath is None
    made = trainer(tmp_path, callbacks=[kept, Reads()])
    made.fit(Net(), loader())
    assert seen == [kept.dirpath] == [str(Path(kept.best_model_path).parent)]
    kept.dirpath, set_before = "own", kept.dirpath
    assert kept.dirpath == str(Path("own").absolute())
    kept.dirpath = None
    assert kept.dirpath == set_before
    # A second fit has a run's folder of its own.
    trainer(tmp_path, callbacks=[kept]).fit(Net(), loader())
    assert kept.dirpath == str(Path(kept.best_model_path).parent) != seen[0]


def test_the_rank_outside_of_a_stage_is_the_launchers(monkeypatch: Any, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    assert made.is_global_zero
    monkeypatch.setenv("RANK", "1")
    assert (made.global_rank, made.is_global_zero) == (1, False)


FABRIC = """
import stratagem_lightning as L, torch
from lightning_utilities.core.rank_zero import rank_zero_only
assert rank_zero_only.rank == 3, "set on import, from RANK"
import os
os.environ.clear()
fabric = L.Fabric(accelerator="cpu", devices=1)
net = torch.nn.Linear(2, 1)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
data = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2))
for batch in data:
    fabric.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
assert fabric.launch() is None and fabric.launch(lambda fabric: fabric.world_size) == 1
print(fabric.device, fabric.is_global_zero, rank_zero_only.rank)
try:
    L.Fabric(accelerator="cpu", devices=2, strategy="ddp").device
except Exception as error:
    print(type(error).__name__, error)
"""


def test_fabric_without_launch_and_the_rank_of_lightning_utilities() -> None:
    """In a process of its own, whose libraries are still to be imported, as a launcher's variables make it rank 3."""
    pytest.importorskip(
        "lightning_utilities", reason="lightning_utilities, whose rank is set, isn't installed"
    )
    import os

    ran = subprocess.run(
        [sys.executable, "-c", FABRIC], capture_output=True, text=True, env={**os.environ, "RANK": "3"}
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "cpu True 0",
        "StratagemError this Fabric has 2 processes and none runs: call launch() first",
    ]


def in_each_rank(fabric: Any, name: str, value: float) -> tuple[str, int, int]:
    from lightning_utilities.core.rank_zero import rank_zero_only

    fabric.log(name, value + fabric.global_rank)
    ranks = fabric.all_gather(torch.tensor(rank_zero_only.rank))
    return type(fabric).__name__, fabric.strategy.num_processes, int(ranks.max())


def test_the_function_of_launch_gets_the_fabric(tmp_path: Path) -> None:
    pytest.importorskip(
        "lightning_utilities", reason="lightning_utilities, whose rank is set, isn't installed"
    )
    from stratagem_lightning.fabric.loggers import CSVLogger as FabricLogger

    fabric = L.Fabric(
        accelerator="cpu", devices=2, strategy="ddp", loggers=FabricLogger(root_dir=tmp_path, name="log")
    )
    assert fabric.launch(in_each_rank, "x", value=1.0) == ("Fabric", 2, 1)
    (written,) = tmp_path.glob("log/version_*/metrics.csv")
    assert "1.0" in written.read_text()


def test_a_data_module_of_lightnings_own_class(tmp_path: Path) -> None:
    lightning = pytest.importorskip(
        "lightning", reason="lightning, whose data module is read, isn't installed"
    )
    called: list[Any] = []

    class Data(lightning.LightningDataModule):
        def __init__(self, size: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()

        def prepare_data(self) -> None:
            called.append("prepare_data")

        def setup(self, stage: str) -> None:
            called.append((stage, type(self.trainer).__name__))

        def train_dataloader(self) -> Any:
            return loader(self.hparams.size)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            called.append(len(batch[0]))
            return batch

    data, logger = Data(), CSVLogger(tmp_path)
    made = trainer(tmp_path, logger=logger)
    made.fit(Net(), datamodule=data)
    assert called == ["prepare_data", ("fit", "Trainer"), 2, 2, 2, 2]
    assert made.datamodule is data
    assert data.trainer is None
    assert "size: 8" in (Path(logger.log_dir) / "hparams.yaml").read_text()
    made.fit(Net(), data)
    with pytest.raises(StratagemError, match="test_dataloader"):
        made.test(Net(), datamodule=data)


def test_a_data_module_of_lightnings_own_class_goes_to_workers() -> None:
    lightning = pytest.importorskip(
        "lightning", reason="lightning, whose data module is read, isn't installed"
    )
    from stratagem_lightning.foreign_data import adapted

    data = lightning.LightningDataModule.from_datasets(TensorDataset(torch.ones(4, 2)), batch_size=2)
    assert len(adapted(data).train_dataloader()) == 2
    plain = pickle.loads(pickle.dumps(adapted(lightning.LightningDataModule())))
    assert plain.train_dataloader() is None
    assert adapted(5) == 5
