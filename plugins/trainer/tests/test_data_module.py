"""`DataModule`: when each method is called, in which process, and what checkpoints keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_trainer.callbacks import ModelCheckpoint
from stratagem_trainer.loggers import CSVLogger
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CheckpointError, ConfigError


class Numbers(stratagem.DataModule):
    """Writes down what is called, and in which process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun = folder, 0

    def note(self, what: str) -> None:
        rank = self.trainer.global_rank
        with (self.folder / f"calls-{rank}").open("a") as file:
            file.write(f"{what}\n")

    def prepare_data(self) -> None:
        self.note("prepare_data")

    def setup(self, stage: str) -> None:
        self.note(f"setup {stage}")

    def teardown(self, stage: str) -> None:
        self.note(f"teardown {stage}")

    def on_exception(self, error: BaseException) -> None:
        self.note(f"on_exception {type(error).__name__}")

    def train_dataloader(self) -> Any:
        self.note(f"train_dataloader {self.trainer.current_epoch}")
        self.begun += 1
        return DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=4)

    def val_dataloader(self) -> Any:
        self.note("val_dataloader")
        return DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=4)

    test_dataloader = predict_dataloader = val_dataloader

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.note(f"load {state}")
        self.begun = state["begun"]


def data() -> Any:
    x = torch.linspace(-1, 1, 16 * 4).reshape(16, 4)
    return x, x.sum(1, keepdim=True)


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "devices": 1, "max_epochs": 1, **how}
    return stratagem.Trainer(accelerator="cpu", run_dir=folder / "run", seed=1, **quiet)


def calls(folder: Path, rank: int = 0) -> list[str]:
    path = folder / f"calls-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


class Regression(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("count", float(len(batch[0])), reduce_fx="sum")

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_every_stage_asks_it_for_its_loaders(tmp_path: Path) -> None:
    numbers, module, run = Numbers(tmp_path), Regression(), trainer(tmp_path)
    run.fit(module, datamodule=numbers)
    fitted = ["prepare_data", "setup fit", "train_dataloader 0", "val_dataloader", "teardown fit"]
    assert calls(tmp_path) == fitted
    assert run.datamodule is numbers
    assert run.validate(module, datamodule=numbers) == [{"count": 16}]
    assert run.test(datamodule=numbers) == [{"count": 16}]
    assert len(run.predict(module, numbers)) == 4
    expected = [
        each
        for stage in ("validate", "test", "predict")
        for each in ("prepare_data", f"setup {stage}", "val_dataloader", f"teardown {stage}")
    ]
    assert calls(tmp_path) == expected
    # Its state is in the checkpoint.
    again = trainer(tmp_path / "2", max_epochs=2)
    again.fit(Regression(), numbers, ckpt_path=tmp_path / "run/checkpoints/last")
    assert "load {'begun': 1}" in calls(tmp_path)


def test_each_node_prepares_once_and_each_rank_has_an_object(tmp_path: Path) -> None:
    run = trainer(tmp_path, devices=2, strategy="ddp")
    numbers = Numbers(tmp_path)
    run.fit(Regression(), datamodule=numbers)
    first, second = calls(tmp_path, 0), calls(tmp_path, 1)
    assert first == ["prepare_data", *second]
    assert run.callback_metrics["count"] == 16
    assert numbers.begun == 0  # workers have objects of their own


class Fails(Numbers):
    def val_dataloader(self) -> Any:
        raise RuntimeError("no disk")


def test_it_hears_of_errors(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no disk"):
        trainer(tmp_path).fit(Regression(), datamodule=Fails(tmp_path))
    assert calls(tmp_path)[-1] == "on_exception RuntimeError"


def test_loaders_come_from_one_place(tmp_path: Path) -> None:
    loader = DataLoader(torch.utils.data.TensorDataset(*data()))
    with pytest.raises(ConfigError, match="fit got loaders and a datamodule"):
        trainer(tmp_path).fit(Regression(), loader, datamodule=Numbers(tmp_path))
    with pytest.raises(ConfigError, match="datamodule is a int: derive it from"):
        trainer(tmp_path).fit(Regression(), datamodule=3)


def test_from_datasets(tmp_path: Path) -> None:
    dataset = torch.utils.data.TensorDataset(*data())
    made = stratagem.DataModule.from_datasets(dataset, [dataset, dataset], test_dataset=dataset, batch_size=8)
    run = trainer(tmp_path, devices=2, strategy="ddp")
    run.fit(Regression(), made)
    assert run.callback_metrics["count/dataloader_idx_1"] == 16
    assert run.num_training_batches == 1
    assert isinstance(made.train_dataloader().sampler, torch.utils.data.RandomSampler)


def test_loaders_are_made_again_every_so_many_epochs(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    run = trainer(tmp_path, max_epochs=5, reload_dataloaders_every_n_epochs=2)
    run.fit(Regression(), datamodule=numbers)
    assert [each for each in calls(tmp_path) if each.startswith("train")] == [
        f"train_dataloader {epoch}" for epoch in (0, 2, 4)
    ]
    resumed = trainer(tmp_path / "2", max_epochs=6, reload_dataloaders_every_n_epochs=2)
    resumed.fit(Regression(), datamodule=numbers, ckpt_path=run.checkpoint_callback.last_model_path)
    assert "train_dataloader 5" in calls(tmp_path)


def test_a_module_of_the_small_tests_has_loaders_of_its_own(tmp_path: Path) -> None:
    (found,) = trainer(tmp_path).test(Line(count=10), datamodule=stratagem.DataModule())
    assert found["count"] == 10


class Pairs:
    """A batch that is no tensor, list, tuple, dict or dataclass, and has no method `to`."""

    def __init__(self, pair: Any) -> None:
        self.pair = pair


class Doubles(stratagem.DataModule):
    """Keeps its arguments, moves batches itself, and doubles them on the device."""

    def __init__(self, batch_size: int = 4, factor: float = 2.0, hidden: bool = False) -> None:
        self.save_hyperparameters(ignore="hidden", logger=not hidden)
        self.seen = 0

    def train_dataloader(self) -> Any:
        return DataLoader(samples(8), self.hparams.batch_size)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return Pairs(batch)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        assert (device, dataloader_idx) == (self.trainer.device, 0)
        return super().transfer_batch_to_device(batch.pair, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.seen += 1
        return batch[0] * self.hparams.factor, batch[1]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_its_hooks_move_batches_in_the_place_of_the_modules(tmp_path: Path) -> None:
    class Doubled(Line):
        def forward(self, x: Any) -> Any:
            return super().forward(x * 2)

    one, other = Line(), Doubled()
    run = trainer(tmp_path, profiler="simple")
    run.fit(one, datamodule=Doubles())
    trainer(tmp_path).fit(other, DataLoader(samples(8), 4))
    assert torch.equal(one.layer.weight, other.layer.weight)
    assert "Doubles.on_after_batch_transfer" in run.profiler.summary()


def test_a_hook_that_nothing_would_call_is_refused(tmp_path: Path) -> None:
    class Moves(Line):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch

    words = "Doubles and .*Moves both define on_after_batch_transfer, which is called once for each batch"
    with pytest.raises(ConfigError, match=words):
        trainer(tmp_path).fit(Moves(), datamodule=Doubles())
    for name, words in [
        ("on_train_start", "never called on data modules; nearest: on_after_batch_transfer, on_before"),
        ("train_dataloaders", "never called on data modules; nearest: train_dataloader"),
        ("setup", r"Wrong.setup takes \(\), but is called with \(stage\)"),
    ]:
        wrong = type("Wrong", (stratagem.DataModule,), {name: lambda self: None})()
        with pytest.raises(ConfigError, match=words):
            trainer(tmp_path).fit(Line(), datamodule=wrong)


@pytest.mark.parametrize("weights_only", [False, True])
def test_its_hyperparameters_are_in_checkpoints(weights_only: bool, tmp_path: Path) -> None:
    class Sized(Line):
        def __init__(self, width: int = 1) -> None:
            super().__init__()
            self.save_hyperparameters()

    kept = ModelCheckpoint(save_weights_only=weights_only)
    run = trainer(tmp_path, callbacks=kept)
    run.fit(Sized(), datamodule=Doubles(2))
    path = kept.last_model_path
    loaded = Doubles.load_from_checkpoint(path, factor=3.0)
    assert loaded.hparams == {"batch_size": 2, "factor": 3.0}
    assert (loaded.seen > 0) is not weights_only
    assert Sized.load_from_checkpoint(path).hparams == {"width": 1}
    without = trainer(tmp_path / "2")
    without.fit(Sized(), DataLoader(samples(8), 4))
    with pytest.raises(
        CheckpointError, match="no data module's hyperparameters: use a checkpoint of a fit that"
    ):
        Doubles.load_from_checkpoint(without.checkpoint_callback.last_model_path)


def test_loggers_get_its_hyperparameters_with_the_modules(tmp_path: Path) -> None:
    class Notes(CSVLogger):
        def log_hyperparams(self, params: Any) -> None:
            found.append(dict(params))

    class Sized(Line):
        def __init__(self, batch_size: int) -> None:
            super().__init__()
            self.save_hyperparameters()

    found: list[Any] = []
    trainer(tmp_path / "1", logger=Notes()).fit(Sized(4), datamodule=Doubles())
    assert found == [{"batch_size": 4, "factor": 2.0}]
    trainer(tmp_path / "2", logger=Notes(), enable_autolog_hparams=False).fit(Sized(8), datamodule=Doubles())
    assert len(found) == 1
    with pytest.raises(
        ConfigError, match=r"'batch_size' is 8 in .*Sized and 4 in Doubles, but loggers take one"
    ):
        trainer(tmp_path / "3", logger=Notes()).fit(Sized(8), datamodule=Doubles())
    trainer(tmp_path / "4", logger=Notes()).fit(Sized(8), datamodule=Doubles(hidden=True))
    assert found[1] == {"batch_size": 8}
