"""Steps per second of strategies beside each other: python tests/benchmarks/strategies_speed.py [strategy ...]

The same small transformer under `Trainer` on two CPU processes of one thread each. The strategies take turns,
a run each, and each run's figure is over that of the first strategy in the same round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
from throughput import Transformer

import stratagem
from stratagem.testing.workers import Workers

STEPS = int(os.environ.get("BENCH_STEPS", "60"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
WARM_UP = 10
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3")
OPTIONS: dict[str, dict[str, Any]] = {
    # Otherwise parameters as small as these stay whole.
    "deepspeed_stage_3": {"stage3_param_persistence_threshold": 0},
}


class Clock(stratagem.Callback):
    """When the steps that count began and ended."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == WARM_UP:
            self.began = time.perf_counter()
        elif batch_idx + 1 == WARM_UP + STEPS:
            self.ended = time.perf_counter()


def steps_per_second(strategy: str) -> float:
    """Train for a while. Run by every rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy=strategy,
            strategy_options=OPTIONS.get(strategy, {}),
            accelerator="cpu",
            devices=2,
            max_steps=WARM_UP + STEPS,
            callbacks=clock,
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
        ).fit(Transformer())
    return STEPS / (clock.ended - clock.began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    asked = parser.parse_args().strategies
    rates: dict[str, list[float]] = {strategy: [] for strategy in asked}
    workers = Workers()
    for _ in range(ROUNDS):
        for strategy in asked:
            rates[strategy].append(workers.run(2, steps_per_second, strategy, timeout_s=900)[0])
    workers.close()
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{parameters:,} parameters; median and range of {ROUNDS} rounds of {STEPS} steps\n")
    print(f"| 2 processes | steps per second | over {asked[0]} |\n| --- | --- | --- |")
    for strategy, own in rates.items():
        ratios = [rate / first for rate, first in zip(own, rates[asked[0]])]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {strategy} | {statistics.median(own):.1f} | {statistics.median(ratios):.2f} ({spread}) |")


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import strategies_speed

    strategies_speed.main()
