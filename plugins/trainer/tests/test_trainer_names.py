"""What a trainer says in hooks and afterwards, and which checkpoints "best" and "last" are."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_trainer.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CheckpointError, StratagemError, UsageError


class Watches(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.seen: dict[str, Any] = {}
        self.last: list[bool] = []

    def configure_optimizers(self) -> Any:
        self.seen["steps"] = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        t = self.trainer
        self.last.append(t.is_last_batch)
        self.seen["phases"] = (t.training, t.validating, t.sanity_checking, t.testing, t.predicting)
        self.seen["run"] = (
            t.state.fn,
            t.state.status,
            t.is_global_zero,
            t.num_devices,
            t.num_nodes,
            t.node_rank,
        )
        self.seen["parts"] = (t.model is self, len(t.optimizers), t.lr_scheduler_configs[0].interval)
        self.seen["loaders"] = (t.train_dataloader is not None, len(t.val_dataloaders or ()))
        self.log("hidden", 1.0, logger=False)
        self.log("bar", 2.0, prog_bar=True)
        return self.layer(batch).square().mean()  # type: ignore[no-any-return]  # modules return Any

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.last.append(self.trainer.is_last_batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        t = self.trainer
        self.seen.setdefault("evaluated", []).append((t.training, t.validating, t.sanity_checking))
        self.log("val", self.layer(batch).mean().abs() + t.current_epoch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("weight", self.layer.weight.detach().sum())


def loader(num_batches: int) -> Any:
    return DataLoader(torch.ones(num_batches * 2, 2), batch_size=2)


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    fixed = {"accelerator": "cpu", "devices": 1, "run_dir": folder / "run", "enable_progress_bar": False}
    return stratagem.Trainer(**{**fixed, **how})


def test_in_hooks_and_afterwards(tmp_path: Path) -> None:
    best, stopping, module = ModelCheckpoint(monitor="val"), EarlyStopping("val", patience=9), Watches()
    run = trainer(
        tmp_path,
        max_epochs=3,
        accumulate_grad_batches=2,
        num_sanity_val_steps=1,
        callbacks=[best, stopping],
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    assert (run.state.fn, run.state.status) == (None, "initializing")
    with pytest.raises(StratagemError, match="known after a fit has made its loaders"):
        _ = run.estimated_stepping_batches
    run.fit(module, loader(5), loader(1))
    assert module.seen["steps"] == run.estimated_stepping_batches == 9
    assert module.seen["phases"] == (True, False, False, False, False)
    assert module.seen["evaluated"] == [(False, False, True)] + [(False, True, False)] * 3
    assert module.seen["run"] == ("fit", "running", True, 1, 1, 0)
    assert module.seen["parts"] == (True, 1, "epoch")
    assert module.seen["loaders"] == (True, 1)
    assert module.last == ([False] * 8 + [True] * 2) * 3
    assert (run.state.fn, run.state.status, run.state.finished) == ("fit", "finished", True)
    assert (run.num_training_batches, run.num_val_batches, run.num_sanity_val_batches) == (5, [1], [1])
    assert (run.current_epoch, run.global_step, run.max_epochs, run.max_steps) == (3, 9, 3, -1)
    assert {"hidden", "bar", "val"} <= set(run.callback_metrics)
    assert {"bar", "val"} <= set(run.logged_metrics)
    assert "hidden" not in run.logged_metrics
    assert "hidden" not in (tmp_path / "run/metrics.csv").read_text()
    assert set(run.progress_bar_metrics) == {"bar"}
    assert run.checkpoint_callback is best
    assert run.early_stopping_callback is stopping
    assert run.progress_bar_callback is None
    assert (run.log_dir, run.default_root_dir) == (str(tmp_path / "run"), str(tmp_path))
    assert (run.model, run.train_dataloader, run.precision) == (module, None, "32-true")
    with pytest.raises(StratagemError, match="no stage of this trainer is running"):
        _ = run.optimizers
    # As in a stage, and as before the first one.
    for each in (run, trainer(tmp_path), trainer(tmp_path, strategy=run.strategy)):
        assert (type(each.strategy).__name__, each.accelerator.name) == ("SingleDeviceStrategy", "cpu")
        assert each.strategy is each.strategy
        assert pickle.loads(pickle.dumps(each)).accelerator.name == "cpu"
    with pytest.raises(AttributeError, match=r"'fit_loop': current_epoch, global_step, .* have its position"):
        _ = run.fit_loop
    with pytest.raises(AttributeError, match="nearest: current_epoch"):
        _ = run.current_epok
    assert not hasattr(run, "anything_else")


def test_workers_facts_come_back(tmp_path: Path) -> None:
    run = trainer(tmp_path, strategy="ddp", devices=2, max_epochs=1)
    run.fit(Watches(), loader(4), loader(1))
    assert (run.num_training_batches, run.num_val_batches, run.state.finished) == (2, [1], True)
    assert set(run.progress_bar_metrics) == {"bar"}


def test_no_limit_is_infinite(tmp_path: Path) -> None:
    module = Watches()
    trainer(tmp_path, max_epochs=-1, max_steps=2).fit(module, loader(3), loader(1))
    assert module.seen["steps"] == 2
    unknown = Watches()
    run = trainer(tmp_path / "2", max_epochs=1)
    run.fit(unknown, DataLoader(Endless(), batch_size=2), loader(1))
    assert unknown.seen["steps"] == run.num_training_batches == math.inf


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.ones(4, 2))


def test_an_interrupted_fit_says_so(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_epochs=1)
    with pytest.raises(TypeError):
        run.fit(Watches(), [None], loader(1))
    assert (run.state.fn, run.state.status, run.state.finished) == ("fit", "interrupted", False)


def test_best_and_last_and_no_model(tmp_path: Path) -> None:
    module = Watches()
    run = trainer(tmp_path, max_epochs=2, callbacks=ModelCheckpoint(monitor="val"))
    for name in ("best", "last"):
        with pytest.raises(CheckpointError, match="no fit of this trainer has written such a checkpoint"):
            run.test(module, loader(1), ckpt_path=name)
    with pytest.raises(UsageError, match="test got no model, and this trainer hasn't fitted one"):
        run.test(dataloaders=loader(1))
    run.fit(module, loader(3), loader(1))
    last = float(module.layer.weight.detach().sum())
    (at_best,) = run.test(dataloaders=loader(1))  # val is least after the first epoch
    assert run.ckpt_path == run.checkpoint_callback.best_model_path
    assert run.test(module, loader(1), ckpt_path="best") == [at_best]
    (at_last,) = run.test(Watches(), loader(1), ckpt_path="last")
    assert at_last["weight"] == pytest.approx(last)
    assert at_best["weight"] != at_last["weight"]
    more = trainer(tmp_path / "more", max_epochs=3)
    with pytest.raises(CheckpointError, match="'hpc' isn't needed here"):
        more.fit(module, loader(3), ckpt_path="hpc")
    bare = trainer(tmp_path / "bare", enable_checkpointing=False, max_epochs=1)
    bare.fit(module, loader(1))
    (now,) = bare.test(dataloaders=loader(1))
    assert now["weight"] == pytest.approx(float(module.layer.weight.detach().sum()))
    with pytest.raises(CheckpointError, match="this trainer has no ModelCheckpoint"):
        bare.test(dataloaders=loader(1), ckpt_path="last")


class SaveWeights(stratagem.Callback):
    def on_train_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(f"{trainer.run_dir}/weights", weights_only=True)


def test_a_checkpoint_of_weights_alone(tmp_path: Path) -> None:
    module = Watches()
    run = trainer(tmp_path, max_epochs=1, callbacks=SaveWeights(), enable_checkpointing=False)
    run.fit(module, loader(3), loader(1))
    (found,) = run.test(Watches(), loader(1), ckpt_path=tmp_path / "run/weights")
    assert found["weight"] == pytest.approx(float(module.layer.weight.detach().sum()))
    with pytest.raises(CheckpointError, match="has only weights, from which no fit can resume"):
        trainer(tmp_path / "2", max_epochs=2).fit(Watches(), loader(3), ckpt_path=tmp_path / "run/weights")
