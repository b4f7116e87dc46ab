"""Training under a strategy gives the numbers of one process on the same global batches."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Net, plain_training

import stratagem

TOLERANCE = 1e-6
GLOBAL_BATCH = 32


def fit(tmp_path: Path, **how: Any) -> tuple[Net, list[float]]:
    processes, accumulate = how.get("devices", 1), how.get("accumulate_grad_batches", 1)
    scheduled = how.pop("scheduled", False)
    module = Net(batch_size=GLOBAL_BATCH // processes // accumulate, scheduled=scheduled)
    trainer = stratagem.Trainer(
        accelerator="cpu",
        max_steps=20,
        seed=7,
        log_every_n_steps=1,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        **how,
    )
    trainer.fit(module)
    assert trainer.global_step == 20
    return module, logged_losses(tmp_path / "run")


def logged_losses(run_dir: Path) -> list[float]:
    with (run_dir / "metrics.csv").open() as lines:
        return [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]


def assert_same(module: Net, losses: list[float] | None, **how: Any) -> None:
    parameters, plain_losses = plain_training(20, GLOBAL_BATCH, seed=7, **how)
    for name, parameter in module.net.state_dict().items():
        torch.testing.assert_close(parameter, parameters[name], atol=TOLERANCE, rtol=0)
    if losses is not None:
        assert losses == pytest.approx(plain_losses, abs=TOLERANCE)


@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_ddp_equals_plain_torch(tmp_path: Path, processes: int) -> None:
    module, losses = fit(tmp_path, strategy="ddp", devices=processes)
    assert_same(module, losses)


def test_single_equals_plain_torch(tmp_path: Path) -> None:
    module, losses = fit(tmp_path, strategy="single", gradient_clip_val=0.1, scheduled=True)
    assert_same(module, losses, clip=0.1, scheduled=True)


def test_ddp_clips_and_schedules_as_plain_torch(tmp_path: Path) -> None:
    module, losses = fit(tmp_path, strategy="ddp", devices=2, gradient_clip_val=0.1, scheduled=True)
    assert_same(module, losses, clip=0.1, scheduled=True)


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [("single", 1), ("ddp", 1), ("ddp", 2), pytest.param("ddp", 4, marks=pytest.mark.long)],
)
def test_accumulating_equals_plain_torch(tmp_path: Path, strategy: str, processes: int) -> None:
    # A loss is logged per micro-batch then, so only the parameters are compared.
    module, _ = fit(tmp_path, strategy=strategy, devices=processes, accumulate_grad_batches=2)
    assert_same(module, None)


@pytest.mark.parametrize(
    ("processes", "accumulate"),
    [(1, 1), (2, 1), *(pytest.param(*each, marks=pytest.mark.long) for each in [(2, 2), (4, 1)])],
)
def test_command_line_equals_plain_torch(tmp_path: Path, processes: int, accumulate: int) -> None:
    batch_size = GLOBAL_BATCH // processes // accumulate
    command = [
        *(sys.executable, "-m", "stratagem", "fit", "parity:Net"),
        *("--strategy", "ddp", "--accelerator", "cpu", "--devices", str(processes)),
        *("--max-steps", "20", "--seed", "7", "--run-dir", str(tmp_path / "run")),
        *("--set", f"model.batch_size={batch_size}"),
        *("--set", f"trainer.accumulate_grad_batches={accumulate}"),
        *("--set", "trainer.log_every_n_steps=1"),
    ]
    support = Path(__file__).parents[1] / "support"
    done = subprocess.run(command, cwd=support, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    last = tmp_path / "run" / "checkpoints" / "last"
    module = Net()
    stratagem.Trainer(accelerator="cpu", strategy="single", enable_progress_bar=False).test(
        module, ckpt_path=last
    )
    assert_same(module, logged_losses(tmp_path / "run") if accumulate == 1 else None)
