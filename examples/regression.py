"""Tabular regression: the progress of diabetes from ten measurements, predicted into a Parquet file.

python examples/regression.py
python examples/regression.py --strategy ddp --accelerator cpu --devices 2 --output predictions.parquet

Without pyarrow (`pip install pyarrow`) the file is a .csv. The data come with scikit-learn: 442 patients.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Regression(stratagem.Module):
    """Two layers, and a last one that gives a mean and how sure the model is of it."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 2))

    def forward(self, measurements: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, of (batch,) each."""
        mean, log_std = self.net(measurements).unbind(dim=1)
        return mean, log_std.exp()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        measurements, progress = batch
        mean, std = self(measurements)
        loss = F.gaussian_nll_loss(mean, progress, std**2)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        measurements, progress = batch
        mean, _ = self(measurements)
        # Progress has variance 1, so this is the share of it that isn't explained.
        self.log("val_unexplained", F.mse_loss(mean, progress), prog_bar=True, sync_dist=True)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        measurements, progress = batch
        mean, std = self(measurements)
        return {"progress": progress, "predicted": mean, "std": std}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)


def patients() -> tuple[TensorDataset, TensorDataset]:
    """342 patients to train with and 100 to predict, all columns with mean 0 and variance 1."""
    measurements, progress = (
        torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True)
    )
    measurements = (measurements - measurements.mean(0)) / measurements.std(0)
    progress = (progress - progress.mean()) / progress.std()
    order = torch.randperm(len(progress), generator=torch.Generator().manual_seed(0))
    return tuple(TensorDataset(measurements[rows], progress[rows]) for rows in (order[:342], order[342:]))


def write(path: Path, columns: dict[str, list[float]]) -> Path:
    """Write a table, as Parquet where pyarrow is installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        path = path.with_suffix(".csv")
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values())])
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--max-epochs", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("predictions.parquet"))
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")

    train, test = (DataLoader(part, batch_size=32, shuffle=i == 0) for i, part in enumerate(patients()))
    model = Regression()
    trainer = stratagem.Trainer(**arguments, seed=1)
    trainer.fit(model, train, test)
    # One dict per batch, in the order of the data, however many processes there were.
    batches = trainer.predict(model, test)
    columns = {name: torch.cat([batch[name] for batch in batches]).tolist() for name in batches[0]}
    print(f"{len(columns['predicted'])} predictions in {write(output, columns)}")
