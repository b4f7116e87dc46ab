"""`--data`: a DataModule on the command line, and arguments of the trainer by `--set`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from stratagem_cli.main import main

HERE = ["--accelerator", "cpu", "--devices", "1", "--set", "trainer.enable_progress_bar=false"]

DATA = """
import torch
import stratagem
from torch.utils.data import DataLoader, TensorDataset


class Numbers(stratagem.DataModule):
    def __init__(self, count: int = 8, size: int = 2) -> None:
        self.count, self.size = count, size

    def train_dataloader(self):
        return DataLoader(torch.ones(self.count, 2), batch_size=self.size)

    def val_dataloader(self):
        return [self.train_dataloader(), self.train_dataloader()]

    test_dataloader = predict_dataloader = val_dataloader


class Other:
    pass
"""
MODEL = """
import torch
import stratagem


class Net(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("count", float(len(batch)), reduce_fx="sum")

    test_step = validation_step

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


@pytest.fixture
def files(folder: Path) -> Path:
    Path("numbers_data.py").write_text(DATA)
    Path("plain_net.py").write_text(MODEL)
    return folder


def test_data_of_a_file_with_settings_and_saved(files: Any, capfd: Any) -> None:
    words = ["plain_net.py:Net", "--data", "numbers_data.py:Numbers", "--set", "data.count=12", *HERE]
    fit = ["fit", *words, "--run-dir", "out", "--max-epochs", "-1", "--max-steps", "7"]
    assert main([*fit, "--set", "trainer.overfit_batches=3"]) == 0
    assert "count/dataloader_idx_1  6" in capfd.readouterr().out
    content = yaml.safe_load(Path("out/config.yaml").read_text())
    assert content["data"] == {
        "class": str(Path("numbers_data.py").absolute()) + ":Numbers",
        "count": 12,
        "size": 2,
    }
    assert content["trainer"]["overfit_batches"] == 3
    assert main(["test", *words]) == 0
    out = capfd.readouterr().out
    assert "count/dataloader_idx_0  12" in out
    assert "count/dataloader_idx_1  12" in out
    # The file repeats it; what is set goes over it.
    assert main(["validate", "--config", "out/config.yaml", "--set", "data.count=5"]) == 0
    assert "count/dataloader_idx_0  5" in capfd.readouterr().out
    assert main(["predict", *words, "--output", "p.npz"]) == 0
    assert "float32 24×1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "data.count=3"],
            "'data.count' is a setting of a DataModule, but no DataModule is named: pass --data",
        ),
        (["--data", "numbers_data.py:Number"], "has no class 'Number'; nearest: Numbers"),
        (["--data", "numbers_data.py:Numbers", "--set", "data.cont=3"], "cont"),
        (["--data", "numbers_data.py:Other"], "not from stratagem.DataModule"),
        (
            ["--set", "trainer.overfit_pct=0.1"],
            "Trainer has no argument 'overfit_pct': it is now called overfit_batches",
        ),
    ],
)
def test_refused_with_one_sentence(files: Any, refused: Any, words: Any, message: str) -> None:
    assert message in refused("fit", "plain_net.py:Net", *HERE, *words)
