"""FairScale under Stratagem beside itself by hand: python tests/benchmarks/fairscale_engine.py [sharded]

Two processes take the same steps by a plain loop with OSS and ShardedDDP, and by Trainer, in turns; one process by a
plain loop with Pipe, and by Trainer. The figures are the medians over the rounds of the ratios of steps per second,
and of the process's CPU time, which other work on the machine changes less.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from stratagem_fairscale import FairScalePipeStrategy, FairScaleShardedStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "100"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
WARM = 65
"""From then on copies are compared every 100 steps, as in a long run, and not at powers of two."""
TARGET = 0.95
SIZES = {"75 thousand parameters": (8, 128, 4), "900 thousand parameters": (64, 384, 6)}
"""Samples per rank and step, width, layers."""
Size = tuple[int, int, int]


def net(width: int, layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def loader(batch: int, width: int, rank: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(rank)
    return DataLoader(TensorDataset(torch.randn(batch * (STEPS + WARM), width, generator=generator)), batch)


class Clock:
    """A moment, or the seconds between two: by the clock, and of this process's CPU time."""

    def __init__(self, wall: float | None = None, cpu: float | None = None) -> None:
        self.wall = time.perf_counter() if wall is None else wall
        self.cpu = time.process_time() if cpu is None else cpu

    def __sub__(self, other: Clock) -> Clock:
        return Clock(self.wall - other.wall, self.cpu - other.cpu)


class Timed(stratagem.Module):
    """Notes when its steps begin and end."""

    def __init__(self, size: Size, rank: int) -> None:
        super().__init__()
        batch, width, layers = size
        self.net = net(width, layers)
        self.loader = loader(batch, width, rank)
        self.calls = 0
        self.began = self.ended = Clock()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        if self.calls == WARM:
            self.began = Clock()
        elif self.calls == WARM + STEPS:
            self.ended = Clock()
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader


def by_trainer(strategy: Any, size: Size, rank: int, folder: str) -> Clock:
    module = Timed(size, rank)
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
    return module.ended - module.began


def steps(model: Any, optimizer: Any, zero_grad: Callable[[], Any], size: Size, rank: int) -> Clock:
    batch, width, _ = size
    began = Clock()
    for index, (x,) in enumerate(loader(batch, width, rank), 1):
        if index == WARM:
            began = Clock()
        elif index == WARM + STEPS:
            return Clock() - began
        loss = model(x).square().mean()
        zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError


def sharded_by_hand(buffer_size: int, size: Size, rank: int) -> Clock:
    from fairscale.nn import ShardedDataParallel
    from fairscale.optim import OSS

    class ByHand(OSS):
        """torch wraps the `step` of each class that is made an object of, and ours is derived from OSS."""

    module = net(*size[1:])
    optimizer = ByHand(module.parameters(), optim=torch.optim.AdamW, lr=1e-4)
    model = ShardedDataParallel(module, optimizer, reduce_buffer_size=buffer_size)
    # With buckets this is the way to drop gradients that gives right numbers.
    return steps(model, optimizer, model.zero_grad if buffer_size else optimizer.zero_grad, size, rank)


def pipe_by_hand(size: Size, rank: int) -> Clock:
    from fairscale.nn import Pipe

    module = net(*size[1:])
    half = len(module) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = Pipe(module, [half, len(module) - half], devices=["cpu", "cpu"], chunks=2, checkpoint="never")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return steps(model, optimizer, optimizer.zero_grad, size, rank)


def in_group(rank: int, port: int, function: Callable[[], Clock]) -> Clock:
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        return function()
    finally:
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            if "RANK" in os.environ:
                kinds: dict[str, tuple[Any, Any]] = {
                    f"fairscale_sharded{what}": (
                        partial(sharded_by_hand, buffer_size, size, rank),
                        partial(FairScaleShardedStrategy, reduce_buffer_size=buffer_size),
                    )
                    for what, buffer_size in (("", 0), (" in buckets", 2**23))
                }
            else:
                kinds = {"fairscale_pipe": (partial(pipe_by_hand, size, rank), FairScalePipeStrategy)}
            for kind, (hand_loop, strategy) in kinds.items():
                rounds: list[tuple[Clock, Clock]] = []
                for index in range(ROUNDS):
                    port = int(os.environ.get("BENCH_PORT", "29871")) + index
                    looped = partial(in_group, rank, port, hand_loop) if "RANK" in os.environ else hand_loop
                    both = [looped, partial(by_trainer, strategy(), size, rank, folder)]
                    order = (0, 1) if index % 2 else (1, 0)
                    took = {which: both[which]() for which in order}
                    rounds.append((took[0], took[1]))
                alone, ours = (statistics.median(c.wall for c in each) / STEPS * 1e3 for each in zip(*rounds))
                ratios = sorted(hand.wall / by.wall for hand, by in rounds)
                cpu = statistics.median(by.cpu / hand.cpu for hand, by in rounds)
                ratio = statistics.median(ratios)
                failed |= ratio < TARGET
                if rank == 0:
                    print(
                        f"{kind}, {name}: by hand {alone:.2f} ms per step, by Trainer {ours:.2f} ms, ratio "
                        f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), CPU time {cpu:.2f}",
                        flush=True,
                    )
    sys.exit(failed and rank == 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["sharded"] and "RANK" not in os.environ:
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
        os.execv(sys.executable, run)
    main()
