"""No step of a loop waits for the device: counted on a device that says who waits, and where."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from stratagem_sim.build import is_built
from stratagem_trainer.callbacks import ProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
FIRST, LAST = 33, 62
"""Batches in which waits are counted: after steps 1, 2, 4 and so on, copies are compared."""
ONCE_IN_A_WHILE = ("preemption.py", "reading.py")
"""Ranks exchange a number each half second; losses, rows of logs and the bar's values are read each second or so."""


class Net(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        self.log("mean", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class CountWaits(stratagem.Callback):
    """Writes where rank 0 waited from batch `FIRST` to batch `LAST`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == FIRST and trainer.is_main:
            from stratagem_sim import count_synchronizations

            self._counted = count_synchronizations()
            self._seen, self._began = self._counted.__enter__(), time.monotonic()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == LAST and trainer.is_main:
            self._counted.__exit__(None, None, None)
            keep(self._path, self._seen.places, self._began)
            del self._counted, self._seen


def data() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(520, 8), torch.randn(520, 2))


def keep(path: Path, places: list[str], began: float) -> None:
    path.write_text(json.dumps({"places": places, "seconds": time.monotonic() - began}))


def waits(path: Path) -> list[str]:
    """Return where the host waited, without what it does so many times a second, which is checked here."""
    kept = json.loads(path.read_text())
    rare = [place for place in kept["places"] if any(file in place for file in ONCE_IN_A_WHILE)]
    assert len(rare) <= 4 + 8 * kept["seconds"]  # an exchange has two, one in each direction
    return [place for place in kept["places"] if place not in rare]


@pytest.mark.parametrize(
    ("strategy", "devices", "how"),
    [
        ("single", 1, {}),
        ("single", 1, {"precision": "bf16-mixed"}),
        ("ddp", 2, {}),
        ("fsdp", 2, {}),
        ("ddp_sharded", 2, {}),
        ("ddp_fully_sharded", 2, {}),
    ],
)
def test_no_step_of_a_trainer_waits(strategy: str, devices: int, how: dict[str, Any], tmp_path: Path) -> None:
    # Accumulation, clipping, logging, a scheduler, and a bar that is there, and not yet due again.
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator="sim",
        devices=devices,
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        log_every_n_steps=2 if devices == 1 else 40,  # several ranks reduce what is logged then, and wait
        enable_checkpointing=False,
        enable_model_summary=False,
        run_dir=str(tmp_path / "run"),
        callbacks=[
            CountWaits(tmp_path / "waits"),
            ProgressBar(0.01, console=Console(file=io.StringIO(), force_terminal=True)),
        ],
        **how,
    )
    trainer.fit(Net(), DataLoader(data(), 4))
    assert waits(tmp_path / "waits") == []


def loop(runtime: Any, path: Path, faulty: bool) -> None:
    from stratagem_sim import count_synchronizations

    module = Net().net
    made = torch.optim.AdamW(module.parameters(), lr=1e-3)
    model, optimizer = runtime.setup(module, made, accumulate=2)
    loader = runtime.dataloader(DataLoader(data(), 4))
    for index, (x, y) in enumerate(loader):
        if index == FIRST:
            counted = count_synchronizations()
            seen, began = counted.__enter__(), time.monotonic()
        with runtime.accumulate(loader):
            loss = nn.functional.mse_loss(model(x), y)
            runtime.backward(loss)
            runtime.clip(optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        if faulty:
            loss.item()
        if index == LAST:
            counted.__exit__(None, None, None)
            if runtime.is_main:
                keep(path, seen.places, began)


@pytest.mark.parametrize(
    ("strategy", "devices"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("ddp_sharded", 2)]
)
def test_no_step_of_an_own_loop_waits(strategy: str, devices: int, tmp_path: Path) -> None:
    stratagem.Runtime(strategy, "sim", devices).launch(loop, tmp_path / "waits", False, quiet=True)
    assert waits(tmp_path / "waits") == []


def test_a_wait_in_an_own_loop_is_found_with_its_line(tmp_path: Path) -> None:
    stratagem.Runtime("single", "sim", 1).launch(loop, tmp_path / "waits", True, quiet=True)
    found = waits(tmp_path / "waits")
    assert len(found) == LAST - FIRST + 1
    assert all("test_waits.py" in place and "loss.item()" in place for place in found)
