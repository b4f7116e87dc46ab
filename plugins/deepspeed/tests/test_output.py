"""What the engine says is in the run's folder, and on the terminal only on request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import stratagem


class Tiny(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 3)), 2)
"""


def fit(tmp_path: Path, *flags: str) -> tuple[str, str, str]:
    (tmp_path / "tiny.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "stratagem",
        "fit",
        "tiny.py:Tiny",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
    ]
    command += ["--strategy", "deepspeed_stage_3", "--max-epochs", "1", "--set", "run_dir=run", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, (tmp_path / "run" / "deepspeed-0.log").read_text()


def test_quiet_unless_asked(tmp_path: Path) -> None:
    out, err, log = fit(tmp_path, "--set", "strategy.logging_level=20")
    for engines in ("[INFO]", "DeepSpeed info", "FutureWarning", "Setting ds_accelerator"):
        assert engines not in out + err
    assert "DeepSpeed" in log
    assert "ZeRO stage 3" in err


def test_loud_when_asked(tmp_path: Path) -> None:
    _, err, log = fit(tmp_path, "--log-level", "info")
    assert "DeepSpeed Basic Optimizer = SGD" in err
    assert "DeepSpeed Basic Optimizer = SGD" in log
