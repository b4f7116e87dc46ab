"""Metric objects in `self.log`, against torchmetrics itself over all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import LoggingError

torchmetrics = pytest.importorskip("torchmetrics")
CLASSES = 3


def samples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    return TensorDataset(
        torch.randn(count, 4, generator=generator), torch.randint(CLASSES, (count,), generator=generator)
    )


def metrics() -> Any:
    how = {"task": "multiclass", "num_classes": CLASSES}
    return torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(**how),
            "f1": torchmetrics.F1Score(average="macro", **how),
            "auroc": torchmetrics.AUROC(**how),  # keeps all scores in lists
            "cohen": torchmetrics.CohenKappa(**how),
        }
    )


class Classifier(stratagem.Module):
    """Logs a metric object alone, a collection, and one that is made of two others."""

    def __init__(self, count: int = 22, val_count: int = 13) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, CLASSES)
        self.train_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.loss_mean = torchmetrics.MeanMetric()
        self.val_metrics = metrics()
        self.best = torchmetrics.MaxMetric()
        self.count, self.val_count = count, val_count
        self.rows: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.net(batch[0])
        loss = torch.nn.functional.cross_entropy(scores, batch[1])
        self.train_accuracy(scores, batch[1])
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        self.loss_mean.update(loss.detach(), weight=len(batch[1]))
        self.log("loss_mean", self.loss_mean, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.rows.append(dict(self.trainer.callback_metrics))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.net(batch[0])
        self.val_metrics.update(scores.softmax(-1), batch[1])
        self.log_dict(self.val_metrics)
        self.best.update(scores.max())
        self.log("best", self.best)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return DataLoader(samples(self.count), batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(samples(self.val_count), batch_size=4)


def trainer(folder: Path, devices: int = 1, **how: Any) -> stratagem.Trainer:
    settings = {"enable_progress_bar": False, "enable_checkpointing": False, "log_every_n_steps": 1, **how}
    strategy = settings.pop("strategy", "ddp" if devices > 1 else "single")
    return stratagem.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, run_dir=folder / "run", **settings
    )


def expected(module: Classifier, count: int) -> dict[str, float]:
    alone, (x, y) = metrics(), samples(count).tensors
    with torch.no_grad():
        scores = module.net(x)
    alone.update(scores.softmax(-1), y)
    return {**{name: float(value) for name, value in alone.compute().items()}, "best": float(scores.max())}


@pytest.mark.filterwarnings("ignore:No positive samples")  # of two samples
@pytest.mark.parametrize(("devices", "count"), [(1, 13), (3, 2)])
def test_an_evaluation_computes_over_all_samples_once_at_any_number_of_ranks(
    tmp_path: Path, devices: int, count: int
) -> None:
    module = Classifier(val_count=count)
    (found,) = trainer(tmp_path, devices).validate(module)
    assert found == pytest.approx(expected(module, count), abs=1e-6)
    assert found["accuracy"] == expected(module, count)["accuracy"]
    # Reset by themselves.
    assert not module.best.update_called
    assert not module.val_metrics["accuracy"].update_called


def test_borrowed_batches_of_a_collective_forward_count_for_nothing(tmp_path: Path) -> None:
    module = Classifier(val_count=9)  # two batches and one
    run = trainer(tmp_path, 2, strategy="fsdp", num_sanity_val_steps=1, max_epochs=1)
    (found,) = run.validate(module)
    assert found == pytest.approx(expected(module, 9), abs=1e-6)


def test_training_gives_the_step_the_batch_and_the_epoch_everything(tmp_path: Path) -> None:
    alone: Any = Classifier(24)
    together = Classifier(24)
    one, two = trainer(tmp_path / "1", max_epochs=2), trainer(tmp_path / "2", 2, max_epochs=2)
    alone.train_dataloader = lambda: DataLoader(samples(24), batch_size=8)
    one.fit(alone)
    two.fit(together)
    for run in (one, two):
        seen = run.callback_metrics
        assert seen["train_accuracy"] == seen["train_accuracy_epoch"]
        assert "train_accuracy_step" in seen
    assert one.callback_metrics["train_accuracy_epoch"] == two.callback_metrics["train_accuracy_epoch"]
    assert one.callback_metrics["loss_mean"] == pytest.approx(two.callback_metrics["loss_mean"], abs=1e-6)
    assert alone.rows[0]["train_accuracy"] != alone.rows[1]["train_accuracy"]


class SaveAt(stratagem.Callback):
    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_resumed_in_mid_epoch_goes_on_with_half_full_objects(tmp_path: Path, devices: int) -> None:
    whole = trainer(tmp_path / "a", devices, max_epochs=2, callbacks=SaveAt(tmp_path / "saved", 2), seed=1)
    whole.fit(Classifier())
    resumed = trainer(tmp_path / "b", devices, max_epochs=2, seed=1)
    resumed.fit(Classifier(), ckpt_path=tmp_path / "saved")
    assert resumed.callback_metrics == whole.callback_metrics
    if devices > 1:
        return
    first = trainer(tmp_path / "c", devices, max_epochs=1, seed=1)
    first.fit(Classifier(), ckpt_path=tmp_path / "saved")
    line = (tmp_path / "c/run/metrics.csv").read_text().splitlines()[-1]
    assert line in (tmp_path / "a/run/metrics.csv").read_text()


def test_a_tried_validation_leaves_metric_objects_as_they_were(tmp_path: Path) -> None:
    module = Classifier()
    run = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=2)
    run.fit(module)
    assert run.callback_metrics["auroc"] == pytest.approx(expected(module, 13)["auroc"], abs=1e-6)


class Wrong(Classifier):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.hidden = what, [torchmetrics.MeanMetric()]
        self.matrix = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.net(batch[0])
        if self.what == "updated":
            self.train_accuracy.update(scores, batch[1])
            self.log("a", self.train_accuracy)
        elif self.what == "hidden":
            self.hidden[0].update(1.0)
            self.log("a", self.hidden[0], on_step=False, on_epoch=True)
        else:
            self.matrix.update(scores, batch[1])
            self.log("a", self.matrix, on_step=False, on_epoch=True)
        return scores.sum()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("updated", "has no value of this batch: call it,"),
        ("hidden", "isn't an attribute of the module: keep it as an attribute"),
        ("matrix", r"computes a tensor of shape \(3, 3\): log one that computes a number"),
    ],
)
def test_what_cannot_be_logged_is_one_sentence(tmp_path: Path, what: str, words: str) -> None:
    with pytest.raises(LoggingError, match=words):
        trainer(tmp_path, max_epochs=1).fit(Wrong(what))
