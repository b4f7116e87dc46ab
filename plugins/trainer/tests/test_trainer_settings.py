"""Settings of the trainer that end a fit, try it, or set what torch does."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stratagem_trainer.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError


class Net(stratagem.Module):
    """A line with a validation that logs, and counts what it runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.validated: list[tuple[bool, bool]] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        drawn = torch.rand(1) + random.random() + np.random.rand()
        loss = (self.layer(batch) + drawn).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append((self.trainer.sanity_checking, torch.is_inference_mode_enabled()))
        random.random(), np.random.rand()
        self.log("val", self.layer(batch).mean() + torch.rand(1))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class StopsAtOnce(stratagem.Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = True


class Slow(stratagem.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(0.3)


def loader(num_batches: int = 4) -> Any:
    return DataLoader(torch.ones(num_batches * 2, 2), batch_size=2)


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    fixed = {"accelerator": "cpu", "devices": 1, "run_dir": folder / "run"}
    return stratagem.Trainer(**{**fixed, **quiet, **how})


@pytest.mark.parametrize(
    ("least", "ended"),
    [
        ({}, (1, 0)),
        ({"min_steps": 3}, (3, 0)),
        ({"min_epochs": 2}, (8, 2)),
        ({"min_epochs": 1, "min_steps": 6}, (6, 1)),
    ],
)
def test_a_wish_to_stop_is_heard_after_the_least_of_epochs_and_steps(
    tmp_path: Path, least: Any, ended: Any
) -> None:
    run = trainer(tmp_path, max_epochs=5, callbacks=StopsAtOnce(), **least)
    run.fit(Net(), loader())
    assert (run.global_step, run.current_epoch) == ended
    assert run.should_stop


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_afterwards_a_trainer_says_whether_a_fit_was_stopped(
    tmp_path: Path, strategy: str, devices: int
) -> None:
    run = trainer(tmp_path, max_epochs=1, callbacks=StopsAtOnce(), strategy=strategy, devices=devices)
    run.fit(Net(), loader())
    assert (run.global_step, run.should_stop) == (1, True)
    run.callbacks.clear()
    run.fit(Net(), loader())
    assert (run.global_step, run.should_stop) == (4 // devices, False)


@pytest.mark.parametrize("limit", ["00:00:00:01", timedelta(seconds=1), {"seconds": 1}])
def test_a_fit_ends_when_its_time_is_over(tmp_path: Path, limit: Any) -> None:
    run = trainer(tmp_path, max_epochs=50, max_time=limit, callbacks=Slow())
    run.fit(Net(), loader())
    assert 1 <= run.global_step <= 6


def test_ranks_end_together_when_the_time_is_over(tmp_path: Path) -> None:
    run = trainer(
        tmp_path, strategy="ddp", devices=2, max_epochs=50, max_time={"seconds": 2}, callbacks=Slow()
    )
    run.fit(Net(), loader(20))
    assert 1 <= run.global_step < 60


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_time": "1:00"}, "max_time='1:00' is not a time above 0: pass 'DD:HH:MM:SS'"),
        ({"max_time": {"years": 1}}, "is not a time above 0"),
        ({"max_time": timedelta(0)}, "is not a time above 0"),
        ({"min_epochs": 3, "max_epochs": 2}, "at least 3 epochs or steps can't end after 2"),
        ({"min_steps": -1}, "min_steps=-1 must be a whole number of at least 0"),
        ({"num_sanity_val_steps": -2}, "num_sanity_val_steps=-2 must be"),
        ({"deterministic": "yes"}, "deterministic='yes' must be one of True, False, 'warn'"),
        ({"benchmark": 3}, "benchmark=3 must be one of"),
        ({"detect_anomaly": 1}, "detect_anomaly=1 must be True or False"),
        ({"fast_dev_run": -1}, "fast_dev_run=-1 must be True, False or a number"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_sentence(tmp_path: Path, setting: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        trainer(tmp_path, **setting)


@pytest.mark.parametrize(("steps", "tried"), [(0, 0), (2, 2), (-1, 3)])
def test_a_validation_is_tried_before_the_fit_and_leaves_nothing(
    tmp_path: Path, steps: int, tried: int
) -> None:
    module, plain = Net(), Net()
    stopping = EarlyStopping(monitor="val", patience=1)
    run = trainer(tmp_path, max_epochs=1, seed=3, num_sanity_val_steps=steps, callbacks=stopping)
    run.fit(module, loader(), loader(3))
    assert [sanity for sanity, _ in module.validated] == [True] * tried + [False] * 3
    trainer(tmp_path / "plain", max_epochs=1, seed=3).fit(plain, loader(), loader(3))
    assert module.losses == plain.losses
    assert all(map(torch.equal, module.parameters(), plain.parameters()))


def test_a_fast_run_tries_everything_and_leaves_no_file(tmp_path: Path) -> None:
    module = Net()
    kept = ModelCheckpoint(monitor="val")
    run = trainer(tmp_path, fast_dev_run=2, max_epochs=9, logger=True, callbacks=[kept])
    run.fit(module, loader(), loader())
    assert (run.global_step, len(module.validated), kept in run.callbacks) == (2, 2, False)
    assert not list((tmp_path / "run").rglob("*.csv"))
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    trainer(tmp_path, fast_dev_run=True).test(module, loader())
    assert len(module.validated) == 3


def test_inference_mode(tmp_path: Path) -> None:
    for wanted in (True, False):
        module = Net()
        trainer(tmp_path, inference_mode=wanted).validate(module, loader(1))
        assert module.validated == [(False, wanted)]


def test_settings_of_torch_hold_during_the_fit_alone(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(stratagem.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            seen.append((torch.are_deterministic_algorithms_enabled(), warns))
            seen.append((torch.backends.cudnn.benchmark, torch.is_anomaly_enabled()))

    settings = {"deterministic": "warn", "benchmark": True, "detect_anomaly": True}
    trainer(tmp_path, max_steps=1, callbacks=Looks(), **settings).fit(Net(), loader())
    assert seen == [(True, True), (True, True)]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert not torch.is_anomaly_enabled()


def test_runs_go_below_the_default_folder(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=1, run_dir=None, default_root_dir=tmp_path / "all")
    run.fit(Net(), loader())
    assert run.run_dir is not None
    assert os.path.dirname(run.run_dir) == str(tmp_path / "all" / "runs")
