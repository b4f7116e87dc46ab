"""Compositions of axes beside the same by hand, with torch's APIs: python tests/benchmarks/compositions.py

A small transformer on four processes of one thread each. Every few steps the same processes take as many steps by
hand: each figure is of such a pair of windows. What both send is counted in one step of each. Steps per second over
those by hand need an idle machine with four cores; CPU time over that by hand, and bytes, hardly do.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from next_token import NextToken, quartiles
from stratagem_mesh import ComposedStrategy
from stratagem_sharding.traffic import watch_traffic
from stratagem_testing.workers import Workers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from stratagem import Runtime

WINDOW = 5
PAIRS = int(os.environ.get("BENCH_PAIRS", "20"))
WARM_UP = 2
"""Pairs that don't count."""
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 256, 64, 128, 4, 3, 8
SPLIT = {"[qkv]": "colwise", "out": "rowwise", "up": "colwise", "down": "rowwise"}


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(NextToken):
    """Of these blocks."""

    def __init__(self) -> None:
        super().__init__(Block, LAYERS, WIDTH, VOCABULARY)


def by_hand(axes: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a module as torch's documentation composes it, and its optimizer. Collective."""
    names = tuple(term.partition("=")[0] for term in axes.split("+"))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    module = Transformer()
    if "tensor" in names:
        styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
        plan = {name: styles[style]() for name, style in SPLIT.items()}
        for block in module.blocks:
            parallelize_module(block, mesh["tensor"], plan)
    sharded = mesh[tuple(name for name in names if name != "tensor")]
    for block in module.blocks:
        fully_shard(block, mesh=sharded)
    fully_shard(module, mesh=sharded)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-3)


def measure(axes: str) -> tuple[list[tuple[float, float, float]], dict[str, list[int]]]:
    """Return seconds per step by hand with both ratios, pair by pair, and bytes of a step by collective.

    Run by every rank.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options: dict[str, Any] = {}
    if "tensor" in axes:
        options["tensor"] = {"parallelize": {f"blocks.*.{name}": style for name, style in SPLIT.items()}}
    runtime = Runtime(
        strategy=ComposedStrategy(axes, axis_options=options), accelerator="cpu", devices=4, seed=0
    )
    result: tuple[list[tuple[float, float, float]], dict[str, list[int]]] = runtime.launch(
        pairs_of, axes, quiet=True
    )
    return result


def pairs_of(runtime: Runtime, axes: str) -> Any:
    module = Transformer()
    ours, optimizer = runtime.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-3))
    theirs, torchs = by_hand(axes)
    generator = torch.Generator().manual_seed(runtime.collectives.data.rank)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)

    def our_step() -> None:
        runtime.backward(ours(tokens))
        optimizer.step()
        optimizer.zero_grad()

    def their_step() -> None:
        theirs(tokens).backward()
        torchs.step()
        torchs.zero_grad()

    figures = []
    for _ in range(WARM_UP + PAIRS):
        own, hand = _timed(our_step), _timed(their_step)
        figures.append((hand[0] / WINDOW, hand[0] / own[0], own[1] / hand[1]))
    sent = [_sent(step) for step in (our_step, their_step)]
    return figures[WARM_UP:], {name: [each[name] for each in sent] for name in sorted({*sent[0], *sent[1]})}


def _timed(step: Callable[[], None]) -> tuple[float, float]:
    """Return seconds and seconds of CPU time of a window."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(WINDOW):
        step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _sent(step: Callable[[], None]) -> Counter[str]:
    """Return bytes of messages by collective."""
    sent: Counter[str] = Counter()
    end = watch_traffic(lambda collective, size: sent.update({collective: size}))
    step()
    end()
    return sent


def _beside(collective: str, ours: int, theirs: int) -> str:
    return f"{collective} {ours / theirs:.3f}" if theirs else f"{collective} of {ours:,} more"


def main() -> None:
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{parameters:,} parameters; {PAIRS} pairs of {WINDOW} steps; median and quartiles\n")
    print(
        "| 4 processes | a step by hand | steps per second | CPU time | bytes |\n| --- | --- | --- | --- | --- |"
    )
    workers = Workers()
    for axes in ("replicate=2+shard=2", "shard=2+tensor=2"):
        figures, sent = workers.run(4, measure, axes, timeout_s=900)[0]
        seconds, speed, cpu = (list(each) for each in zip(*figures))
        both = ", ".join(_beside(name, own, hand) for name, (own, hand) in sent.items())
        step = f"{1000 * statistics.median(seconds):.1f} ms"
        print(f"| `{axes}` | {step} | {quartiles(speed)} | {quartiles(cpu)} | {both} |", flush=True)
    workers.close()


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import compositions

    compositions.main()
