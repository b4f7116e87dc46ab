"""How far gradients of means are from those of one process: python tests/benchmarks/unequal_losses.py

Two ranks under ddp have unequally many labels. Each line compares the step's gradient, from means and from sums with
their weights, with that of one process over all labels, in float64 and as a share of its norm.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import stratagem

LABELS = ((64, 64), (48, 80), (32, 96), (8, 120))


def batch(rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(count, 16, generator=draw, dtype=torch.float64)
    return x, torch.randint(8, (count,), generator=draw)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).double()


def gradient(module: nn.Module) -> torch.Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None]
    )


def error(runtime: stratagem.Runtime, counts: tuple[int, int], weighted: bool) -> float:
    alone, original = net(), net()
    x, y = (torch.cat(parts) for parts in zip(*(batch(rank, counts[rank]) for rank in range(2))))
    F.cross_entropy(alone(x), y).backward()
    module, _ = runtime.setup(original, torch.optim.SGD(original.parameters(), lr=0.1))
    x, y = batch(runtime.rank, counts[runtime.rank])
    if weighted:
        runtime.backward(F.cross_entropy(module(x), y, reduction="sum"), weight=len(y))
    else:
        runtime.backward(F.cross_entropy(module(x), y))
    return float((gradient(module) - gradient(alone)).norm() / gradient(alone).norm())


def compare(runtime: stratagem.Runtime) -> list[list[float]]:
    # Once a loss of a run has a weight, each needs one: means come first.
    return [[error(runtime, counts, weighted) for counts in LABELS] for weighted in (False, True)]


if __name__ == "__main__":
    found = stratagem.Runtime(strategy="ddp", accelerator="cpu", devices=2).launch(compare)
    print(
        "| labels on two ranks | gradient of means | gradient of sums with weights |\n| --- | ---: | ---: |"
    )
    for (first, second), means, sums in zip(LABELS, *found):
        print(f"| {first} and {second} | {means:.1%} | {sums:.0e} |")
