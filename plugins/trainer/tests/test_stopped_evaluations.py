"""An evaluation that is asked to stop ends between two batches, on all ranks, and keeps what was predicted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import Line, samples
from stratagem_launch import Preempted
from stratagem_trainer.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader

import stratagem


class Signalled(Line):
    """Sends its process a signal in a batch of an evaluation."""

    def __init__(self, victim: int = 0, wait_s: float = 0.0) -> None:
        super().__init__()
        self.victim, self.wait_s = victim, wait_s

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._signal(batch_idx)
        super().validation_step(batch, batch_idx)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        self._signal(batch_idx)
        return super().predict_step(batch, batch_idx)

    def _signal(self, batch_idx: int) -> None:
        time.sleep(self.wait_s)
        if batch_idx == 3 and self.global_rank == self.victim:
            signal.raise_signal(signal.SIGUSR1)

    def predict_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(400), 4)


class Written(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("epoch")
        self.batches: list[Any] = []

    def write_on_epoch_end(
        self, trainer: Any, module: Any, predictions: list[Any], batch_indices: list[Any]
    ) -> None:
        self.batches = predictions


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR1, before)


def trainer(**more: Any) -> stratagem.Trainer:
    return stratagem.Trainer(
        strategy="single", accelerator="cpu", logger=False, enable_progress_bar=False, **more
    )


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_an_evaluation_is_broken_off(stage: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Preempted) as stopped:
        getattr(trainer(), stage)(Signalled())
    assert (stopped.value.code, stopped.value.reason, stopped.value.path) == (75, "SIGUSR1", "")
    assert f"stopping    by SIGUSR1: {stage} is incomplete" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_prediction_keeps_what_there_is() -> None:
    written, module = Written(), Signalled()
    whole = trainer().predict(Line(), DataLoader(samples(400), 4))
    with pytest.raises(Preempted) as stopped:
        trainer(callbacks=[written]).predict(module)
    (predictions,) = stopped.value.predictions or ()
    assert len(predictions) == len(written.batches) == 4
    assert torch.equal(torch.cat(predictions), torch.cat(whole[:4]))
    with pytest.raises(Preempted) as stopped:
        trainer().predict(module, [DataLoader(samples(8), 4), DataLoader(samples(40), 4)])
    assert [len(of_loader) for of_loader in stopped.value.predictions or ()] == [2, 4]


def test_a_time_limit_breaks_off_a_test() -> None:
    with pytest.raises(Preempted) as stopped:
        trainer(time_limit=2.5, grace_period_s=2).test(
            Signalled(victim=1, wait_s=0.2), DataLoader(samples(4000), 4)
        )
    assert stopped.value.reason == "the time limit"


@pytest.mark.serial
def test_a_signal_to_one_of_two_ranks_stops_both_with_the_first_predictions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stratagem", "predict", f"{__file__}:Signalled", "--strategy", "ddp"]
    command += [
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--set",
        "model.victim=1",
        "--set",
        "model.wait_s=0.05",
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{Path(samples.__code__.co_filename).parent}",
    }
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out.npz")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environ,
    )
    assert done.returncode == 75, done.stderr
    assert "predict is incomplete" in done.stderr
    assert not (tmp_path / "out.npz").exists()
    found = np.load(tmp_path / "out.partial.npz")["predictions"]
    whole = torch.cat(trainer().predict(Line(), DataLoader(samples(400), 4))).numpy()
    assert 16 < len(found) < 400
    np.testing.assert_allclose(found, whole[: len(found)], rtol=1e-6)
