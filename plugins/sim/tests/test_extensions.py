"""Reports and the watch for NaN on a device whose work runs late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_report.phases import BACKWARD, FORWARD, OPTIMIZER
from stratagem_report.reading import read_run
from stratagem_sim.build import is_built
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


class Net(stratagem.Module):
    """Two layers, whose loss is NaN at one step.

    Args:
        nan_at: that step, from 1; 0 for none.
        width: of the hidden layer.
    """

    def __init__(self, nan_at: int = 0, width: int = 16) -> None:
        super().__init__()
        self.nan_at = nan_at
        self.net = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.2), nn.Linear(width, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        return loss / 0.0 if self.global_step + 1 == self.nan_at else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.linspace(-1, 1, 64 * 64 * 8).reshape(-1, 8)), 64)


def fit(folder: Path, net: Net, **how: Any) -> None:
    stratagem.Trainer(
        accelerator="sim", max_epochs=1, run_dir=folder, enable_progress_bar=False, logger=False,
        enable_model_summary=False, strategy="single", devices=1, enable_checkpointing=False, **how,
    ).fit(net)  # fmt: skip


def report(folder: Path) -> None:
    from stratagem_report.recording import device
    from stratagem_sim import count_synchronizations

    device.COST_SHARE = float("inf")  # type: ignore[misc]  # events are recorded by threads that take turns here
    with count_synchronizations() as seen:
        fit(folder, Net(width=512), plugins=["record"])
    assert not [place for place in seen.places if "stratagem_report" in place], seen.places


def nan(folder: Path) -> None:
    try:
        fit(folder, Net(nan_at=5), terminate_on_nan=True)
    except stratagem.StratagemError as error:
        print(error)


TASKS = {each.__name__: each for each in (report, nan)}


def in_a_process(*words: str, **variables: str) -> str:
    """Run a command with late work; return what it printed."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "STRATAGEM_SIM_DELAY": "late", "STRATAGEM_SIM_LATE_MS": "10000", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("delay", ["random", "late"])
def test_a_report_has_the_times_of_the_device_and_waits_for_nothing(tmp_path: Path, delay: str) -> None:
    in_a_process(__file__, "report", str(tmp_path), STRATAGEM_SIM_DELAY=delay, STRATAGEM_SIM_LATE_MS="20")
    (rank,) = read_run(str(tmp_path)).attempts[0]
    assert rank.steps == 64
    assert len(rank.device_steps) >= 3
    for step in rank.device_steps:
        assert all(step.ns[phase] > 0 for phase in (FORWARD, BACKWARD, OPTIMIZER)), step


def test_a_loss_that_is_not_finite_is_reported_with_its_step(tmp_path: Path) -> None:
    said = in_a_process(__file__, "nan", str(tmp_path))
    assert "the loss is inf at step 5" in said or "the loss is nan at step 5" in said


if __name__ == "__main__":
    TASKS[sys.argv[1]](Path(sys.argv[2]))
