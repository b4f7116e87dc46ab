"""Steps of the Trainer and steps by hand in turns, within one run: what else the machine does meets both alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

PAIRS = int(os.environ.get("BENCH_PAIRS", "20"))
"""Of as many steps as a comparison of copies comes in one of, so that each pair has one."""
TURN, TURNS = 20, 5
"""Steps one after the other, and how often in a pair."""
WARM = 65
"""From then on copies are compared every 100 steps, as in a long run, and not at powers of two."""
TARGET = 0.95
SIZES = {"75 thousand parameters": (8, 128, 4), "900 thousand parameters": (64, 384, 6)}
"""Samples per rank and step, width, layers."""
Size = tuple[int, int, int]
Steps = Callable[[int], None]
"""Takes so many steps by hand."""


def net(size: Size) -> nn.Sequential:
    _, width, layers = size
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def loader(size: Size, rank: int) -> DataLoader[Any]:
    batch, width, _ = size
    steps = WARM + (PAIRS * TURNS + 2) * TURN
    generator = torch.Generator().manual_seed(rank)
    return DataLoader(TensorDataset(torch.randn(batch * steps, width, generator=generator)), batch)


def stepping(model: Any, optimizer: Any, zero_grad: Callable[[], Any], size: Size, rank: int) -> Steps:
    """Return a plain loop over batches of its own."""
    batches = iter(loader(size, rank))

    def steps(count: int) -> None:
        for _ in range(count):
            (x,) = next(batches)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            zero_grad()  # here, as the Trainer: elsewhere in the loop, other memory is free when backward needs some

    return steps


class Clock:
    """A moment, or the seconds between two: by the clock, and of this process's CPU time."""

    def __init__(self, wall: float | None = None, cpu: float | None = None) -> None:
        self.wall = time.perf_counter() if wall is None else wall
        self.cpu = time.process_time() if cpu is None else cpu

    def __sub__(self, other: Clock) -> Clock:
        return Clock(self.wall - other.wall, self.cpu - other.cpu)


class Interleaved(stratagem.Module):
    """Is trained by the Trainer, and every so many steps lets as many be taken by hand."""

    def __init__(self, size: Size, rank: int, by_hand: Callable[[], Steps]) -> None:
        super().__init__()
        self.net = net(size)
        self.loader = loader(size, rank)
        self.make_by_hand = by_hand
        self.by_hand: Steps | None = None
        self.calls = 0
        self.began: Clock | None = None
        self.ours: list[Clock] = []
        self.hand: list[Clock] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls >= WARM and (self.calls - WARM) % TURN == 0:
            self.take_turns()
        return self.net(batch[0]).square().mean()

    def take_turns(self) -> None:
        if self.began is not None:
            self.ours.append(Clock() - self.began)
        if len(self.hand) == PAIRS * TURNS:
            self.began = None
            return
        if self.by_hand is None:
            self.by_hand = self.make_by_hand()
            self.by_hand(TURN)
        before = Clock()
        self.by_hand(TURN)
        self.began = Clock()
        self.hand.append(self.began - before)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader


def compare(
    name: str, strategy: Any, size: Size, rank: int, folder: str, by_hand: Callable[[], Steps]
) -> bool:
    """Print how many steps per second the Trainer makes over those by hand; whether that is enough.

    Args:
        name: to print.
        strategy: of the Trainer, on two devices.
        size: of the model and its batches.
        rank: of this process.
        folder: for the run.
        by_hand: makes the loop, once the run's processes are connected.
    """
    module = Interleaved(size, rank, by_hand)
    stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        run_dir=folder,
    ).fit(module)
    module.by_hand = None
    hand, ours = _of_pairs(module.hand), _of_pairs(module.ours)
    ratios = sorted(by.wall / our.wall for by, our in zip(hand, ours))
    ratio, quarter = statistics.median(ratios), len(ratios) // 4
    cpu = statistics.median(our.cpu / by.cpu for by, our in zip(hand, ours))
    alone, under = (statistics.median(each.wall for each in clocks) for clocks in (hand, ours))
    if rank == 0:
        print(
            f"{name}: by hand {alone * 1e3:.2f} ms per step, by Trainer {under * 1e3:.2f} ms, ratio {ratio:.2f} "
            f"(quartiles {ratios[quarter]:.2f} and {ratios[-1 - quarter]:.2f}), CPU time {cpu:.2f}",
            flush=True,
        )
    return ratio >= TARGET


def _of_pairs(turns: list[Clock]) -> list[Clock]:
    """Seconds per step of each pair."""
    steps = TURN * TURNS
    pairs = [turns[start : start + TURNS] for start in range(0, len(turns), TURNS)]
    return [Clock(sum(t.wall for t in pair) / steps, sum(t.cpu for t in pair) / steps) for pair in pairs]
