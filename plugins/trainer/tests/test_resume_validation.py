"""A run that is continued from before, within or after a validation goes on as the uninterrupted one."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_trainer.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

import stratagem


class Noisy(Dataset[Any]):
    """Draws from the global generator, in the worker if there is one."""

    def __init__(self, count: int) -> None:
        self.tensors = samples(count).tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        x, y = self.tensors
        return x[index] + 0.01 * torch.randn(4), y[index]


class Drawing(Line):
    """Draws numbers in training and in validation, so that one validation too many or too few shows."""

    workers = 0

    def __init__(self) -> None:
        super().__init__(dropout=0.3, count=24, batch_size=2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("drawn", torch.rand(()), on_step=True, on_epoch=True, sync_dist=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_drawn", torch.rand(()), on_step=True)
        super().validation_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("left", torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        by_step = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        return [optimizer], [
            {"scheduler": plateau, "monitor": "drawn_epoch"},
            {"scheduler": by_step, "interval": "step"},
        ]

    def train_dataloader(self) -> Any:
        return DataLoader(Noisy(self.count), self.batch_size, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return DataLoader(Noisy(9), 2, num_workers=self.workers)


class WithWorkers(Drawing):
    """What training data draw in a worker is drawn again after a resume: only validation's are noisy here."""

    workers = 2

    def train_dataloader(self) -> Any:
        return DataLoader(samples(self.count), self.batch_size, num_workers=2)


class Generators(stratagem.Callback):
    """Logs a number of the global generator where the fit ends, and leaves the order of moments."""

    def __init__(self) -> None:
        self.moments: list[str] = []
        self.drawn = 0.0

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(f"validated at {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.moments.append(f"epoch ended at {trainer.global_step}")

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.drawn = float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments, self.drawn = list(state["moments"]), state["drawn"]


def fit(module: Any, run_dir: Path, ckpt_path: Path | None = None, **how: Any) -> dict[str, Any]:
    """Keep every checkpoint: of each step before its validation, and of each validation and epoch."""
    generators = Generators()
    keeps = {"save_top_k": -1, "save_last": False}
    settings = {
        "strategy": "single",
        "accelerator": "cpu",
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "seed": 5,
        "callbacks": [
            generators,
            EarlyStopping("val_loss", patience=100, strict=False),
            ModelCheckpoint(every_n_train_steps=1, dirpath="steps", filename="{step}", **keeps),
            ModelCheckpoint(
                monitor="val_loss", every_n_train_steps=1, dirpath="validated", filename="{step}", **keeps
            ),
            ModelCheckpoint(every_n_epochs=1, dirpath="epochs", filename="{step}", **keeps),
        ],
        **how,
    }
    trainer = stratagem.Trainer(run_dir=run_dir, **settings)
    trainer.fit(module, ckpt_path=ckpt_path)
    rows = []
    if (run_dir / "metrics.csv").exists():
        with (run_dir / "metrics.csv").open() as lines:
            rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(lines)]
    return {
        "weights": module.state_dict(),
        "rows": rows,
        "moments": generators.moments,
        "drawn": generators.drawn,
        "kept": [
            [(entry.step, entry.score) for entry in callback.kept]
            for callback in trainer.callbacks
            if isinstance(callback, ModelCheckpoint)
        ],
        "metrics": dict(trainer.callback_metrics),
    }


def hold(whole: dict[str, Any], rest: dict[str, Any], step: int) -> None:
    for name, value in whole["weights"].items():
        assert torch.equal(rest["weights"][name], value), name
    assert rest["drawn"] == whole["drawn"]
    assert rest["metrics"] == whole["metrics"]
    # In a folder of its own: what was logged up to the checkpoint isn't there.
    assert rest["rows"] == whole["rows"][len(whole["rows"]) - len(rest["rows"]) :]
    assert {int(row["step"]) for row in rest["rows"]} >= {
        int(row["step"]) for row in whole["rows"] if int(row["step"]) > step
    }


CASES = [
    pytest.param({"val_check_interval": 4}, id="interval"),
    pytest.param({"val_check_interval": 5, "accumulate_grad_batches": 2}, id="interval within a window"),
    pytest.param({}, id="epoch"),
    pytest.param({"max_steps": 8, "val_check_interval": 4}, id="ends with a validation"),
    pytest.param({"max_steps": 12}, id="ends with an epoch"),
    pytest.param({"check_val_every_n_epoch": 2, "val_check_interval": 6}, id="second epochs"),
]


@pytest.mark.filterwarnings("ignore:ModelCheckpoint needs 'val_loss':UserWarning")
@pytest.mark.parametrize("how", CASES)
def test_from_every_checkpoint(how: dict[str, Any], tmp_path: Path) -> None:
    whole = fit(Drawing(), tmp_path / "whole", **how)
    checkpoints = sorted((tmp_path / "whole").glob("*/step=*"))
    assert {path.parent.name for path in checkpoints} >= {"steps", "validated"}
    steps = {int(path.name.removeprefix("step=")) for path in checkpoints if path.parent.name != "steps"}
    for number, path in enumerate(checkpoints):
        step = int(path.name.removeprefix("step="))
        # Those beside a validation or an epoch's end, and one between.
        if path.parent.name == "steps" and step not in steps and step != 7:
            continue
        if 12 < step < max(steps):
            continue
        rest = fit(Drawing(), tmp_path / f"rest{number}", path, **how)
        hold(whole, rest, step)
        if path.parent.name == "steps":
            # Callbacks that come after the one that saves aren't called again for that moment.
            assert rest["moments"] == whole["moments"], path


@pytest.mark.long
def test_with_loader_workers(tmp_path: Path) -> None:
    whole = fit(WithWorkers(), tmp_path / "whole", val_check_interval=4)
    for name in ("steps/step=8", "validated/step=8", "steps/step=12", "epochs/step=12"):
        rest = fit(WithWorkers(), tmp_path / name, tmp_path / "whole" / name, val_check_interval=4)
        hold(whole, rest, int(name.rpartition("=")[2]))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_in_two_processes(workers: int, tmp_path: Path) -> None:
    how = {"strategy": "ddp", "devices": 2, "val_check_interval": 3}
    module = WithWorkers if workers else Drawing
    whole = fit(module(), tmp_path / "whole", **how)
    for name in ("steps/step=3", "validated/step=3", "steps/step=6"):
        rest = fit(module(), tmp_path / name, tmp_path / "whole" / name, **how)
        hold(whole, rest, int(name.rpartition("=")[2]))


def test_into_the_same_folder_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    whole = fit(Drawing(), tmp_path / "run", val_check_interval=4)
    for step in (4, 7, 12):
        rest = fit(Drawing(), tmp_path / "run", tmp_path / f"run/steps/step={step}", val_check_interval=4)
        assert rest["rows"] == whole["rows"]


def test_a_checkpoint_from_the_modules_end_of_epoch_is_of_the_next(tmp_path: Path) -> None:
    class Saves(Drawing):
        path = tmp_path / "ckpt"

        def on_train_epoch_end(self) -> None:
            if self.trainer.current_epoch == 0 and not self.path.exists():
                self.trainer.save_checkpoint(self.path)

    whole, rest = Saves(), Saves()
    first = fit(whole, tmp_path / "whole")
    second = fit(rest, tmp_path / "rest", tmp_path / "ckpt")
    hold(first, second, 12)
