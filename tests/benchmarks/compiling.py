"""Time of the extension `compile`: seconds to compile and per step, beside the plain model compiled by hand.

python tests/benchmarks/compiling.py

Each way trains the same transformer blocks, in a process of its own with an empty cache; the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from stratagem_compile import Compile
from torch import nn

from stratagem import Runtime

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 256, 4, 6, 4, 128
STEPS, TURNS = 12, 3
FIRST = 2
"""Steps in which torch compiles."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        batch, length, _ = value.shape
        heads = self.qkv(self.attention_norm(value)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        value = value + self.out(attended.transpose(1, 2).reshape(value.shape))
        result: torch.Tensor = value + self.down(nn.functional.gelu(self.up(self.norm(value))))
        return result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value)
        for block in self.blocks:
            value = block(value)
        return value


def by_hand(what: str) -> tuple[float, float]:
    """Train in a plain loop, and return the seconds of the first steps and of one of the others."""
    net = Net()
    if what == "blocks":
        for block in net.blocks:
            block.compile()
    elif what == "model":
        net.compile()
    return _timed(net, torch.optim.SGD(net.parameters(), 0.01), torch.Tensor.backward)


def extended(runtime: Runtime) -> tuple[float, float]:
    """The same in a run."""
    net = Net()
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.01))
    return _timed(module, optimizer, runtime.backward)


WAYS: Mapping[str, Callable[[], tuple[float, float]]] = {
    "plain, eager": lambda: by_hand("none"),
    "plain, blocks by hand": lambda: by_hand("blocks"),
    "`compile_blocks`": lambda: Runtime("single", accelerator="cpu", plugins=[Compile("blocks")]).launch(
        extended, quiet=True
    ),
    "plain, model by hand": lambda: by_hand("model"),
    "`compile_model`": lambda: Runtime("single", accelerator="cpu", plugins=[Compile("model")]).launch(
        extended, quiet=True
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=tuple(WAYS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        print(json.dumps(WAYS[asked.way]()))
        return
    turns: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in WAYS:
            turns[way].append(_in_a_process(way))
    print(
        f"{LAYERS} transformer blocks of width {WIDTH}, {BATCH} × {LENGTH} tokens, {TURNS} turns\n\n"
        "| | first 2 steps | step after that | over eager |\n"
        "| --- | ---: | ---: | ---: |"
    )
    for way in WAYS:
        first = median(first for first, _ in turns[way])
        step = median(step for _, step in turns[way])
        ratio = median(mine / plain for (_, mine), (_, plain) in zip(turns[way], turns["plain, eager"]))
        print(f"| {way} | {first:.1f} s | {1e3 * step:.0f} ms | {ratio:.2f} |")


def _timed(
    module: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[..., Any]
) -> tuple[float, float]:
    values = torch.randn(BATCH, LENGTH, WIDTH)
    began = time.perf_counter()
    first = 0.0
    for step in range(STEPS):
        if step == FIRST:
            first = time.perf_counter() - began
        backward(module(values).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return first, (time.perf_counter() - began - first) / (STEPS - FIRST)


def _in_a_process(way: str) -> Any:
    with tempfile.TemporaryDirectory() as cache:
        ended = subprocess.run(
            [sys.executable, __file__, "--way", way],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"},
        )
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
