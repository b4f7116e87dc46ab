"""Arguments of the trainer that others have, too, and what isn't one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_trainer.arguments import REPLACED
from stratagem_trainer.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError


class Net(stratagem.Module):
    """A line that keeps its batches."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer: nn.Module = nn.Linear(2, 3)
        if batch_norm:
            self.layer = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.trained: list[list[float]] = []
        self.validated: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trained.append(batch[:, 0].tolist())
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch[:, 0].tolist())
        self.log("val", self.layer(batch).mean())

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(num_batches: int = 4, shuffle: bool = False, size: int = 2) -> Any:
    values = torch.arange(float(num_batches * size))
    return DataLoader(torch.stack([values, values.sin()], 1), batch_size=size, shuffle=shuffle)


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    fixed = {"accelerator": "cpu", "devices": 1, "run_dir": folder / "run", "seed": 1}
    return stratagem.Trainer(**{**fixed, **quiet, **how})


@pytest.mark.parametrize(("overfit", "count"), [(2, 2), (0.5, 2), (1.0, 4), (0, 4)])
def test_overfit_batches_reads_the_same_ones_in_every_epoch(tmp_path: Path, overfit: Any, count: int) -> None:
    module, run = Net(), trainer(tmp_path, max_epochs=2, overfit_batches=overfit)
    if overfit:
        with pytest.warns(
            UserWarning, match="overfit_batches turns off the shuffling of the training loader"
        ):
            run.fit(module, loader(shuffle=True), loader())
        assert module.trained == [[2.0 * i, 2.0 * i + 1] for i in range(count)] * 2
    else:
        run.fit(module, loader(shuffle=True), loader())
    assert len(module.trained) == len(module.validated) == 2 * count
    assert run.num_training_batches == count


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"max_epochs": -1, "max_steps": 10}, 10),
        ({"max_epochs": 2, "max_steps": -1}, 8),
        ({"max_steps": -1}, 4),
        ({"max_epochs": -1, "max_time": {"seconds": 1}}, None),
        ({"max_epochs": 1, "limit_train_batches": 0}, 0),
        ({"max_epochs": 1, "limit_train_batches": 0.0}, 0),
        ({"max_epochs": 1, "limit_val_batches": 0}, 4),
        ({"max_epochs": 1, "num_sanity_val_steps": -1, "gradient_clip_val": 0}, 4),
        ({"max_epochs": 1, "log_every_n_steps": 0, "logger": None, "precision": None, "plugins": None}, 4),
        ({"max_epochs": 1, "enable_progress_bar": False, "enable_checkpointing": None, "callbacks": None}, 4),
    ],
)
def test_minus_one_none_and_zero(tmp_path: Path, settings: Any, steps: int | None) -> None:
    run = trainer(tmp_path, **settings)
    run.fit(Net(), loader(), loader(1))
    assert run.global_step == steps if steps is not None else run.global_step > 8
    assert run.max_epochs == settings.get("max_epochs", 1)
    assert run.max_steps == settings.get("max_steps", -1)


def test_batches_are_counted_over_epochs_where_no_epoch_counts(tmp_path: Path) -> None:
    module = Net()
    run = trainer(tmp_path, max_epochs=3, check_val_every_n_epoch=None, val_check_interval=5)
    run.fit(module, loader(), loader(1))
    assert len(module.validated) == 2  # after batches 5 and 10 of 12
    with pytest.raises(ConfigError, match="check_val_every_n_epoch=None counts batches over epochs"):
        trainer(tmp_path, check_val_every_n_epoch=None)


@pytest.mark.parametrize("name", sorted(REPLACED))
def test_arguments_of_other_times_are_refused_with_what_to_write(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"Trainer has no argument '{name}': "):
        trainer(tmp_path, **{name: 1})


def test_any_other_argument_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no argument 'max_epoch'; nearest: max_epochs"):
        trainer(tmp_path, max_epoch=3)
    with pytest.raises(ConfigError, match="is now called accelerator='cuda', devices=2"):
        trainer(tmp_path, gpus=2)


def test_barebones_runs_the_loop_alone(tmp_path: Path) -> None:
    module = Net()
    run = stratagem.Trainer(
        barebones=True, accelerator="cpu", devices=1, run_dir=tmp_path / "run", max_epochs=2
    )
    run.fit(module, loader(), loader(1))
    assert (run.global_step, run.callbacks, dict(run.callback_metrics)) == (8, [], {})
    assert not list(tmp_path.rglob("*.csv"))
    for wrong in ({"logger": True}, {"num_sanity_val_steps": 2}, {"detect_anomaly": True, "fast_dev_run": 1}):
        with pytest.raises(
            ConfigError, match=f"barebones=True .* without {next(reversed(wrong))}=|barebones"
        ):
            stratagem.Trainer(barebones=True, **wrong)


class Registry(Logger):
    def __init__(self) -> None:
        self.registered: list[tuple[str, str]] = []

    def write(self, rows: Any) -> None:
        pass

    def register_model(self, name: str, path: str) -> None:
        self.registered.append((name, path))


def test_a_registry_gets_the_best_checkpoint_from_a_logger_that_has_one(tmp_path: Path) -> None:
    registry = Registry()
    run = trainer(tmp_path, model_registry="net", logger=registry, enable_checkpointing=True, max_epochs=1)
    run.fit(Net(), loader())
    assert registry.registered == [("net", run.checkpoint_callback.best_model_path)]
    with pytest.raises(ConfigError, match="model_registry='net' needs a logger with a registry"):
        trainer(tmp_path, model_registry="net", logger=True)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norms_of_two_ranks_are_those_of_one_process(tmp_path: Path, momentum: float | None) -> None:
    def fitted(folder: str, size: int, **how: Any) -> Net:
        module = Net(batch_norm=True)
        module.layer[1].momentum = momentum  # type: ignore[index]  # `layer` is a Sequential with batch_norm
        run = trainer(tmp_path / folder, max_epochs=2, **how)
        run.fit(module, loader(24 // size, size=size))
        assert type(module.layer[1]) is nn.BatchNorm1d  # type: ignore[index]  # as above
        return module

    alone = fitted("1", 8)
    together = fitted("2", 4, strategy="ddp", devices=2, sync_batchnorm=True)
    expected = alone.state_dict()
    for name, value in together.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=2e-6, rtol=1e-5)


def test_batch_norms_in_one_process_are_left_alone_and_refused_where_it_splits_batches(
    tmp_path: Path,
) -> None:
    alone, other = Net(batch_norm=True), Net(batch_norm=True)
    trainer(tmp_path / "1", max_epochs=1, sync_batchnorm=True).fit(alone, loader())
    trainer(tmp_path / "2", max_epochs=1).fit(other, loader())
    assert all(map(torch.equal, alone.state_dict().values(), other.state_dict().values()))
    with pytest.raises(stratagem.CombinationError, match="sync_batchnorm needs a process for each device"):
        trainer(tmp_path, strategy="dp", devices=2, sync_batchnorm=True).fit(Net(batch_norm=True), loader())
