"""What a rank keeps for backward, and how long a step takes, where sequences are cut among ranks.

python tests/benchmarks/cut_sequences.py
python tests/benchmarks/cut_sequences.py --tokens 4096 --processes 1 2 4

A transformer with grouped heads, whose logits are of each rank's shard by `sum_over_sequence`. Saved activations are
what a forward leaves allocated for backward, as glibc counts it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from stratagem_model_parallel import sum_over_sequence
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from allocation import allocated

WIDTH, HEADS, FEW, LAYERS, VOCABULARY, STEPS = 256, 8, 4, 4, 1024, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    asked = parser.parse_args()
    print(
        f"| attention, {asked.tokens} tokens | ranks | saved activations, MB | × ranks / one process | s per step |"
    )
    print("| --- | --- | --- | --- | --- |")
    alone = None
    for attention in ("ulysses", "ring"):
        for processes in asked.processes:
            if processes == 1 and alone is not None:
                continue
            strategy: dict[str, Any] = {
                "strategy": "context_parallel",
                "strategy_options": {
                    "attention": attention,
                    "start_method": "popen",
                    "parallelize": {"blocks.*": "block"},
                },
            }
            runtime = stratagem.Runtime(**strategy, accelerator="cpu", devices=processes, seed=1)
            saved, seconds = runtime.launch(measure, asked.tokens, quiet=True)
            alone = alone or saved
            name = "one process" if processes == 1 else attention
            share = f"{saved / 1e6:.1f} | {saved * processes / alone:.3f}"
            print(f"| {name} | {processes} | {share} | {seconds:.2f} |", flush=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH * FEW // HEADS) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return sum_over_sequence(self.losses, x, tokens) / tokens.numel()

    def losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), labels.flatten(), reduction="sum")


def measure(runtime: stratagem.Runtime, length: int) -> tuple[int, float]:
    """Return saved bytes and seconds per step, of rank 0."""
    model = Model()
    net, optimizer = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))
    step(runtime, net, optimizer, tokens)  # with what is made once
    started = time.perf_counter()
    for _ in range(STEPS):
        step(runtime, net, optimizer, tokens)
    seconds = (time.perf_counter() - started) / STEPS
    return saved_by(net, tokens), seconds


def step(runtime: stratagem.Runtime, net: Any, optimizer: Any, tokens: Tensor) -> None:
    optimizer.zero_grad()
    runtime.backward(net(tokens))
    optimizer.step()


def saved_by(net: Any, tokens: Tensor) -> int:
    """Return what a forward leaves allocated."""
    before = allocated()
    loss = net(tokens)
    after = allocated()
    assert loss.requires_grad
    return after - before


if __name__ == "__main__":
    main()
