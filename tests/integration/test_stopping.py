"""Your own training loop that is asked to stop: all ranks save, exit with 75, and later go on as before."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_ddp import DDPStrategy
from stratagem_launch import Preempted, stopping
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem

STEPS = 24


def train(runtime: Any, path: str, victim: int | None = None, save: bool = True) -> list[float]:
    """Two epochs; rank `victim` gets a signal in its third step."""
    model = Line()
    model, optimizer = runtime.setup(model, torch.optim.Adam(model.parameters(), lr=0.05))
    loader = runtime.dataloader(DataLoader(samples(), 4 // runtime.world_size, shuffle=True))
    done = runtime.load(path)["step"] if Path(path).exists() else 0
    with stopping(runtime, grace_period_s=20) as stop:
        step = 0
        while step < STEPS:
            for x, y in loader:
                step += 1
                if step <= done:
                    continue
                if victim is not None:
                    time.sleep(0.02)
                if step == 3 and runtime.rank == victim:
                    signal.raise_signal(signal.SIGUSR2)
                runtime.backward(F.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                here = step
                stop.exit_if_due((lambda: runtime.save(path, {"step": here})) if save else None)  # noqa: B023
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()]).tolist()


def launch(world_size: int, *args: Any, **more: Any) -> Any:
    if world_size == 1:
        strategy: Any = "single"
    else:
        strategy = DDPStrategy(start_method="fork")
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=world_size, seed=3, **more)
    return runtime.launch(train, *args, quiet=True)


@pytest.mark.parametrize("world_size", [1, 2])
def test_it_goes_on_bitwise(world_size: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    whole = launch(world_size, str(tmp_path / "none"))
    with pytest.raises(Preempted) as stopped:
        launch(world_size, str(tmp_path / "last"), world_size - 1, checkpoint_options={"async": True})
    assert (stopped.value.code, stopped.value.reason) == (75, "SIGUSR2")
    assert "stopping    by SIGUSR2" in capfd.readouterr().err
    assert launch(world_size, str(tmp_path / "last")) == whole
    assert signal.signal(signal.SIGUSR2, before) is signal.SIG_DFL


def test_there_need_be_nothing_to_save(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    with pytest.raises(SystemExit) as stopped:
        launch(1, str(tmp_path / "last"), 0, False)
    signal.signal(signal.SIGUSR2, before)
    assert stopped.value.code == 75
    assert not (tmp_path / "last").exists()
