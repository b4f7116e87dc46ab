"""Steps per second of ddp and fsdp over the same written by hand: python tests/benchmarks/throughput.py

A small transformer on two processes of one thread each. Every few steps the same processes, in the same
process group, take as many steps by hand: each figure is of such a pair of windows. Steps per second over
those by hand need an idle machine; CPU time over that by hand hardly does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from next_token import NextToken, quartiles
from stratagem_testing.workers import Workers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import stratagem

WINDOW = 10
PAIRS = int(os.environ.get("BENCH_PAIRS", "40"))
WARM_UP = 2
"""Pairs that don't count."""
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 256, 32, 96, 4, 4, 8


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(NextToken, stratagem.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__(Block, LAYERS, WIDTH, VOCABULARY)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(dataset(), BATCH, shuffle=True)


def dataset() -> TensorDataset:
    """What two processes take in all windows of one kind."""
    count = 2 * BATCH * WINDOW * (WARM_UP + PAIRS)
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(VOCABULARY, (count, LENGTH), generator=generator))


def by_hand(strategy: str) -> Iterator[None]:
    """Train with nothing but torch; a step each time it is asked to go on. Collective."""
    module = Transformer()
    if strategy == "ddp":
        wrapped: nn.Module = nn.parallel.DistributedDataParallel(module)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in module.blocks:
            fully_shard(block)
        wrapped = fully_shard(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    data = dataset()
    for (tokens,) in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
        loss = wrapped(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


class Pairs(stratagem.Callback):
    """After each window of ours, a window by hand, and the ratios of both."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.figures: list[tuple[float, float, float]] = []

    def begin(self) -> None:
        self.hand = by_hand(self.strategy)
        self.steps = 0
        self.began = _clocks()

    def count(self) -> None:
        self.steps += 1
        if self.steps % WINDOW:
            return
        ours, between = _since(self.began), _clocks()
        for _ in range(WINDOW):
            next(self.hand)
        theirs = _since(between)
        self.figures.append((theirs[0] / WINDOW, theirs[0] / ours[0], ours[1] / theirs[1]))
        self.began = _clocks()

    def end(self) -> None:
        self.hand.close()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.begin()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.count()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.end()


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _clocks()
    return wall - began[0], cpu - began[1]


def in_runtime(pairs: Pairs) -> None:
    def loop(runtime: stratagem.Runtime) -> None:
        module = Transformer()
        wrapped, optimizer = runtime.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-3))
        pairs.begin()
        for (tokens,) in runtime.dataloader(DataLoader(dataset(), BATCH, shuffle=True)):
            loss = wrapped(tokens)
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            pairs.count()
        pairs.end()

    stratagem.Runtime(strategy=pairs.strategy, accelerator="cpu", devices=2).launch(loop, quiet=True)


def in_trainer(pairs: Pairs) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy=pairs.strategy,
            accelerator="cpu",
            devices=2,
            max_epochs=1,
            callbacks=pairs,
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
        ).fit(Transformer())


def measure(strategy: str, name: str) -> list[tuple[float, float, float]]:
    """Return seconds per step by hand and both ratios, pair by pair. Run by every rank."""
    warnings.simplefilter("ignore")
    pairs = Pairs(strategy)
    {"Runtime": in_runtime, "Trainer": in_trainer}[name](pairs)
    return pairs.figures[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="*", default=["ddp", "fsdp"])
    asked = parser.parse_args()
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{parameters:,} parameters; {PAIRS} pairs of {WINDOW} steps; median and quartiles\n")
    print(
        "| 2 processes | a step by hand | steps per second | CPU time |\n| --- | --- | --- | --- |",
        flush=True,
    )
    workers = Workers()
    for strategy in asked.strategies:
        for name in ("Runtime", "Trainer"):
            figures = workers.run(2, measure, strategy, name, timeout_s=900)[0]
            seconds, speed, cpu = zip(*figures)
            step = f"{1000 * statistics.median(seconds):.1f} ms"
            print(f"| {strategy}, `{name}` | {step} | {quartiles(speed)} | {quartiles(cpu)} |", flush=True)
    workers.close()


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import throughput

    throughput.main()
