"""Steps per second of torch_xla driven by Stratagem, over torch_xla driven by hand.

    .venv-xla/bin/python tests/benchmarks/xla.py            one device, and two under SPMD
    .venv-xla/bin/python tests/benchmarks/xla.py 2          two alone

Each number of devices has a process of its own. In it, both ways take turns, round by round, on the same
data; a figure is a ratio within a round. Time is that of the clock, until the devices have done all.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "300"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
WARM_UP, BATCH, WIDTH = 10, 64, 256


class Net(stratagem.Module):
    """Three layers; notes the time after its first steps, and at its end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )
        self.calls = 0
        self.began = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.calls == WARM_UP:
            wait()
            self.began = time.perf_counter()
        self.calls += 1
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def steps_per_second(self) -> float:
        wait()
        return (self.calls - WARM_UP) / (time.perf_counter() - self.began)


def wait() -> None:
    import torch_xla.core.xla_model as xm

    xm.wait_device_ops()


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, WIDTH, generator=generator)
    y = torch.randint(0, 10, (STEPS * BATCH,), generator=generator)
    return DataLoader(TensorDataset(x, y), BATCH, shuffle=True)


def by_hand(data: DataLoader[Any], devices: int) -> float:
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), None
    if devices > 1:
        mesh = xs.Mesh(np.arange(devices), (devices,), ("data",))
    module = Net().to(device)
    optimizer = module.configure_optimizers()
    for idx, batch in enumerate(data):
        x, y = (part.to(device) for part in batch)
        if mesh is not None:
            xs.mark_sharding(x, mesh, ("data", None))
            xs.mark_sharding(y, mesh, ("data",))
        loss = module.training_step((x, y), idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    return module.steps_per_second()


class Stop(stratagem.Callback):
    """Reads the clock before anything of the run's end does."""

    figure = 0.0

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.figure = module.steps_per_second()


def by_trainer(data: DataLoader[Any], devices: int, strategy: str) -> float:
    stop = Stop()
    stratagem.Trainer(
        strategy=strategy,
        accelerator="xla",
        devices=devices,
        max_epochs=1,
        callbacks=[stop],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    ).fit(Net(), data)
    return stop.figure


def measure(devices: int) -> None:
    torch.set_num_threads(1)
    data = loader()
    strategy = "xla" if devices > 1 else "single_xla"
    by_trainer(data, devices, strategy)  # starts XLA with so many devices, and compiles
    by_hand(data, devices)
    pairs = [(by_hand(data, devices), by_trainer(data, devices, strategy)) for _ in range(ROUNDS)]
    ratios = [ours / hand for hand, ours in pairs]
    hand = statistics.median(hand for hand, _ in pairs)
    print(
        f"{strategy} on {devices} device{'s' * (devices > 1)}: {hand:.0f} steps/s by hand; Trainer "
        f"{statistics.median(ratios):.3f} of it ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main() -> None:
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
        return
    print(f"{STEPS} steps, {ROUNDS} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for devices in (1, 2):
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, str(devices)], check=True)


if __name__ == "__main__":
    main()
