"""Steps per second of strategies beside each other: python tests/benchmarks/strategies_speed.py [strategy ...]

The same small transformer under `Trainer` on two CPU processes of one thread each. The strategies take turns,
a run each, and each run's figures are over those of the first strategy in the same round. Steps per second
need an idle machine; CPU time per step hardly does.
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
from stratagem_testing.workers import Workers
from throughput import Transformer

import stratagem

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
        self.began = self.ended = clocks()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == WARM_UP:
            self.began = clocks()
        elif batch_idx + 1 == WARM_UP + STEPS:
            self.ended = clocks()


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def fit_quietly(
    module: stratagem.Module,
    strategy: str,
    callback: stratagem.Callback,
    steps: int,
    accelerator: str = "cpu",
    options: dict[str, Any] | None = None,
) -> None:
    """Train on two devices, with nothing but the strategy and `callback`. Run by every process."""
    with tempfile.TemporaryDirectory() as folder:
        stratagem.Trainer(
            strategy=strategy,
            strategy_options=options or {},
            accelerator=accelerator,
            devices=2,
            max_steps=steps,
            callbacks=callback,
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            run_dir=folder,
        ).fit(module)


def seconds_per_step(strategy: str) -> tuple[float, ...]:
    """Train for a while; return seconds per step, and those of CPU time. Run by every rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    clock = Clock()
    fit_quietly(Transformer(), strategy, clock, WARM_UP + STEPS, options=OPTIONS.get(strategy, {}))
    return tuple((ended - began) / STEPS for began, ended in zip(clock.began, clock.ended))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    asked = parser.parse_args().strategies
    seconds: dict[str, list[tuple[float, ...]]] = {strategy: [] for strategy in asked}
    workers = Workers()
    for _ in range(ROUNDS):
        for strategy in asked:
            seconds[strategy].append(workers.run(2, seconds_per_step, strategy, timeout_s=900)[0])
    workers.close()
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{parameters:,} parameters; median and range of {ROUNDS} rounds of {STEPS} steps\n")
    print("| 2 processes | a step | steps per second | CPU time |\n| --- | --- | --- | --- |")
    for strategy, own in seconds.items():
        pairs = list(zip(own, seconds[asked[0]]))
        step = f"{1000 * statistics.median(wall for wall, _ in own):.1f} ms"
        speed = [first[0] / each[0] for each, first in pairs]
        cpu = [each[1] / first[1] for each, first in pairs]
        print(f"| {strategy} | {step} | {middle(speed)} | {middle(cpu)} |")


def middle(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import strategies_speed

    strategies_speed.main()
