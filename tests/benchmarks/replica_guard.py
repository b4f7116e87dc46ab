"""What comparing copies costs under ddp: python tests/benchmarks/replica_guard.py

Two processes of one thread each take turns of 100 steps with copies compared at the default, every 100 steps,
and without. A ratio of two such turns, and the time of a single comparison over that of a step.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch
from stratagem_testing.workers import Workers
from torch import nn

from stratagem import Runtime
from stratagem.strategies import ReplicaGuard

TURN = 100
PAIRS = int(os.environ.get("BENCH_PAIRS", "12"))


def measure(width: int) -> tuple[list[float], float]:
    """Return the ratios of pairs of turns, and the seconds of a comparison over those of a step."""
    torch.set_num_threads(1)
    return Runtime(strategy="ddp", accelerator="cpu", devices=2).launch(compare_turns, width, quiet=True)


def compare_turns(runtime: Runtime, width: int) -> tuple[list[float], float]:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(6)))
    net, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters()))
    batch = torch.randn(32, width)
    guards = [ReplicaGuard(net.prepared, runtime.collectives, every) for every in (TURN, 0)]

    def turn(guard: ReplicaGuard) -> float:
        optimizer.guard = guard
        began = time.perf_counter()
        for _ in range(TURN):
            runtime.backward(net(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - began

    for guard in guards:
        turn(guard)
    ratios = []
    for pair in range(PAIRS):
        seconds = {guard: turn(guard) for guard in guards[:: 1 if pair % 2 else -1]}
        ratios.append(seconds[guards[0]] / seconds[guards[1]])
    began = time.perf_counter()
    for _ in range(20):
        guards[0].compare("in the benchmark")
    comparison = (time.perf_counter() - began) / 20
    return ratios, comparison / (turn(guards[1]) / TURN)


def main() -> None:
    print(f"Comparing copies every {TURN} steps under ddp, 2 processes")
    for width in (64, 512):
        workers = Workers()
        ratios, comparison = workers.run(2, measure, width, timeout_s=900)[0]
        workers.close()
        print(
            f"  6 layers of {width:4} × {width:<4} steps with over without {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}); one comparison is {comparison:.2f} steps, "
            f"so {comparison / TURN:.2%} of a step at the default"
        )


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import replica_guard

    replica_guard.main()
