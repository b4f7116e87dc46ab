"""The largest batch and the largest model that fit: python tests/benchmarks/largest.py --budget-mb 100 --processes 2

A rank may take so much more memory than before the run: what its process grew by at its highest is measured for one
size after the other, each in a run of its own, until the largest that stays within the budget is found (Linux).
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stratagem_testing import StrategySubject
from torch import nn

WIDTH, LAYERS, BATCH = 512, 8, 4
ROWS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_sharded": {},
    "ddp_fully_sharded": {},
    "fsdp": {"auto_wrap_policy": ["Linear"]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="strategy", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--budget-mb", type=float, default=100)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(ROWS):
        parser.error(f"no row {unknown.pop()!r}: choose of {', '.join(ROWS)}")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # glibc would keep what is freed
    budget = asked.budget_mb * 1e6
    print(
        f"Adam over Linear({WIDTH}, {WIDTH}) and ReLU, in {asked.processes} processes that may grow by "
        f"{asked.budget_mb:g} MB each\n"
    )
    print(
        f"| strategy | batch per rank, {LAYERS} layers | over ddp | model, batch {BATCH} per rank | over ddp |"
    )
    print("| --- | --- | --- | --- | --- |", flush=True)
    first: tuple[int, int] | None = None
    for name in asked.rows or ROWS:
        subject = StrategySubject(name, options=ROWS[name], world_size=asked.processes)

        def fits(layers: int, batch: int, subject: StrategySubject = subject) -> bool:
            return max(subject.run(grown_by, layers, batch)) <= budget

        found = (
            64 * largest(lambda count: fits(LAYERS, 64 * count)),
            largest(lambda count: fits(count, BATCH)),
        )
        first = first or found
        ratios = [ours / max(theirs, 1) for ours, theirs in zip(found, first)]
        parameters = found[1] * (WIDTH * WIDTH + WIDTH) / 1e6
        print(
            f"| {name} | {found[0]:,} | {ratios[0]:.2f} | {found[1]} layers, {parameters:.1f} million parameters "
            f"| {ratios[1]:.2f} |",
            flush=True,
        )


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number for which `fits`; 0 where 1 doesn't."""
    low, high = 0, 8
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def grown_by(subject: StrategySubject, layers: int, batch: int) -> int:
    """Train; return by how many bytes this process was larger then at its highest. Run by every rank."""
    subject.runtime().launch(train, 1, 1, quiet=True)  # imports, and buffers that come with any size
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the highest is what it is now
    before = peak_bytes()
    subject.runtime().launch(train, layers, batch, quiet=True)
    return peak_bytes() - before


def train(runtime: Any, layers: int, batch: int) -> None:
    net = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    module, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), foreach=False))
    for size in (1, batch):  # the first makes the optimizer's states
        runtime.backward(module(torch.randn(size, WIDTH)).square().mean(), net)
        optimizer.step()
        optimizer.zero_grad()


def peak_bytes() -> int:
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
