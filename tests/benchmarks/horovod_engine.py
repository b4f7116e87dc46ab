"""Horovod under Stratagem beside itself by hand: .venv-horovod/bin/python tests/benchmarks/horovod_engine.py

Two processes that horovodrun starts take the same steps by a plain loop with `hvd.DistributedOptimizer` and by
Trainer, in turns; the figure is the median over the rounds of the ratio of steps per second, on the clock. Horovod
starts once in these processes, with its own fusion threshold, which a run of ours would set to 0.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stratagem_horovod import HorovodStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "200"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
WARM = 65
"""From then on copies are compared every 100 steps, as in a long run, and not at powers of two."""
TARGET = 0.95
SIZES = {"75 thousand parameters": (8, 128, 4), "900 thousand parameters": (64, 384, 6)}
"""Samples per rank and step, width, layers."""


def net(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def loader(batch: int, width: int, rank: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(rank)
    return DataLoader(TensorDataset(torch.randn(batch * (STEPS + WARM), width, generator=generator)), batch)


class Timed(stratagem.Module):
    """Notes when its steps begin and end."""

    def __init__(self, batch: int, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.net = net(width, layers)
        self.loader = loader(batch, width, rank)
        self.calls, self.began, self.ended = 0, 0.0, 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM:
            self.began = time.perf_counter()
        elif self.calls == WARM + STEPS:
            self.ended = time.perf_counter()
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader


def by_trainer(size: tuple[int, int, int], rank: int, folder: str) -> float:
    module = Timed(*size, rank)
    stratagem.Trainer(
        strategy=HorovodStrategy(scale_lr=False),
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        run_dir=folder,
    ).fit(module)
    return module.ended - module.began


def by_hand(size: tuple[int, int, int], rank: int) -> float:
    import horovod.torch as hvd

    batch, width, layers = size
    module = net(width, layers)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.AdamW(module.parameters(), lr=1e-4), named_parameters=module.named_parameters()
    )
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    began = 0.0
    for index, (x,) in enumerate(loader(batch, width, rank), 1):
        if index == WARM:
            began = time.perf_counter()
        elif index == WARM + STEPS:
            return time.perf_counter() - began
        loss = module(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError


def main() -> None:
    rank = int(os.environ["HOROVOD_RANK"])
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            by_trainer(size, rank, folder)  # starts Horovod, too
            rounds = []
            for index in range(ROUNDS):
                both = [partial(by_hand, size, rank), partial(by_trainer, size, rank, folder)]
                order = (0, 1) if index % 2 else (1, 0)
                took = {which: both[which]() for which in order}
                rounds.append((took[0], took[1]))
            hand, ours = (statistics.median(each) / STEPS * 1e3 for each in zip(*rounds))
            ratios = sorted(first / second for first, second in rounds)
            ratio = statistics.median(ratios)
            failed |= ratio < TARGET
            if rank == 0:
                print(
                    f"{name}: by hand {hand:.2f} ms per step, by Trainer {ours:.2f} ms, ratio {ratio:.2f} "
                    f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
                )
    sys.exit(failed and rank == 0)


if __name__ == "__main__":
    if "HOROVOD_RANK" not in os.environ:
        here = Path(sys.executable).parent
        os.environ["PATH"] = f"{here}{os.pathsep}{os.environ['PATH']}"
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(128 * 2**20)
        os.execv(here / "horovodrun", ["horovodrun", "--gloo", "-np", "2", sys.executable, __file__])
    main()
