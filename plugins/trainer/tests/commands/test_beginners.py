"""What goes wrong first, on the command line: one sentence that names the method and the fix, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from stratagem_cli.main import main

from stratagem.errors import NonFiniteError

MODULES = """
import stratagem, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Works(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), 4)

class NoOptimizer(Works):
    configure_optimizers = stratagem.Module.configure_optimizers

class NoStep(Works):
    training_step = stratagem.Module.training_step

class OtherArguments(Works):
    def on_train_batch_end(self, batch):
        pass

class OtherStep(Works):
    def training_step(self, batch, batch_idx, epoch, step):
        return super().training_step(batch, batch_idx)

class OldHook(Works):
    def training_epoch_end(self, outputs):
        pass

class AlmostAHook(Works):
    def optimiser_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        pass

class ManualHook(Works):
    automatic_optimization = False

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        pass

class NoneAtAll(Works):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)

class Shapes(Works):
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0][:, :3]).mean()

class Infinite(Works):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * float("nan")
"""
HERE = ["--accelerator", "cpu", "--devices", "1", "--max-epochs", "1", "--run-dir", "out"]
QUIET = ["--set", "trainer.enable_progress_bar=false"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("program") / "beginners.py"
    path.write_text(MODULES)
    return str(path)


@pytest.fixture
def written(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return program


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "NoOptimizer",
            "NoOptimizer has no configure_optimizers: fit needs one; define it, and return an optimizer",
        ),
        (
            "NoStep",
            "NoStep has no training_step: fit needs one; define training_step(self, batch, batch_idx)",
        ),
        ("OtherArguments", "OtherArguments.on_train_batch_end takes (batch), but is called with (outputs,"),
        ("OtherStep", "takes (batch, batch_idx, epoch, step), but is called with (batch, batch_idx)"),
        ("OldHook", "training_epoch_end, which is never called here: it is now called on_train_epoch_end"),
        ("AlmostAHook", "optimiser_step, which is never called; nearest: optimizer_step"),
        ("ManualHook", "configure_gradient_clipping, which only automatic optimization calls"),
    ],
)
def test_refused_before_anything_starts(
    name: str, words: str, written: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", f"{written}:{name}", *HERE, *QUIET]) == 2
    reported = capfd.readouterr().err
    assert words in reported
    assert "Traceback" not in reported


def test_a_step_that_returns_nothing(written: str, capfd: pytest.CaptureFixture[str]) -> None:
    # Something was started by then.
    assert main(["fit", f"{written}:NoneAtAll", *HERE, *QUIET]) == 1
    assert "NoneAtAll.training_step returned None for all 4 batches" in capfd.readouterr().err


def test_wrong_shapes(written: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        RuntimeError, match=r"Shapes\.training_step failed for batch 0, which is \(float32 \[4, 4"
    ):
        main(["fit", f"{written}:Shapes", *HERE, *QUIET])


def test_a_loss_that_isnt_finite(written: str, capfd: pytest.CaptureFixture[str]) -> None:
    ending = ["--set", "trainer.terminate_on_nan=true"]
    with pytest.raises(NonFiniteError, match="terminate_on_nan ends the run: the loss is nan at step 1"):
        main(["fit", f"{written}:Infinite", *HERE, *QUIET, *ending])
    with pytest.warns(UserWarning, match=r"the loss is nan at step 1: .*Trainer\(terminate_on_nan=True\)"):
        assert main(["fit", f"{written}:Infinite", *HERE, *QUIET]) == 0
