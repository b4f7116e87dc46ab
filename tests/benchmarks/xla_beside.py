"""XLA's strategies beside ddp and fsdp: .venv-xla/bin/python tests/benchmarks/xla_beside.py

The same small transformer under `Trainer` and the same global batches: ddp and fsdp in two CPU processes of one
thread each, XLA's in one process that drives two of PJRT's CPU devices. The strategies take turns, a run each;
speed is over that of ddp in the same round. Memory is what a device has of parameters and of optimizer states
after the run: of XLA's tensors, the largest of the shards on the devices.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from stratagem_testing.workers import Workers
from strategies_speed import fit_quietly
from throughput import BATCH, Transformer, dataset
from torch import Tensor
from torch.utils.data import DataLoader

import stratagem

STEPS = int(os.environ.get("BENCH_STEPS", "40"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
WARM_UP = 10
STRATEGIES = ("ddp", "fsdp", "xla", "xla_fsdp")


class Global(Transformer):
    """Its loader's batches are those of a process of two, or of one for both."""

    def __init__(self, processes: int) -> None:
        super().__init__()
        self.processes = processes

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(dataset(), 2 * BATCH // self.processes, shuffle=True)


class Watch(stratagem.Callback):
    """When the steps that count began and ended, and what there was at the end."""

    def __init__(self, on_xla: bool) -> None:
        self.on_xla = on_xla
        self.began = self.ended = 0.0
        self.bytes = (0, 0)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == WARM_UP:
            self.began = self.clock()
        elif batch_idx + 1 == WARM_UP + STEPS:
            self.ended = self.clock()
            states = tensors_of(trainer.prepared.optimizers[0].state.values())
            self.bytes = sum(map(on_a_device, module.parameters())), sum(map(on_a_device, states))

    def clock(self) -> float:
        if self.on_xla:
            import torch_xla.core.xla_model as xm

            xm.wait_device_ops()
        return time.perf_counter()


def tensors_of(states: Iterable[dict[str, Any]]) -> list[Tensor]:
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def on_a_device(tensor: Tensor) -> int:
    """Bytes of the largest piece of `tensor`."""
    if tensor.device.type == "xla":
        import torch_xla

        (shards,) = torch_xla._XLAC._get_local_shards([tensor])
        return max(shard.nbytes for shard, _ in shards) if shards else tensor.nbytes
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.nbytes


def train(strategy: str) -> tuple[float, int, int]:
    """Return steps per second, and bytes of parameters and of states. Run by every process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    on_xla = strategy.startswith("xla")
    watch = Watch(on_xla)
    accelerator = "xla" if on_xla else "cpu"
    fit_quietly(Global(1 if on_xla else 2), strategy, watch, WARM_UP + STEPS, accelerator)
    return (STEPS / (watch.ended - watch.began), *watch.bytes)


def main() -> None:
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    # A process that drives XLA's devices has done nothing else before.
    pools = {"xla": Workers(), "cpu": Workers()}
    rates: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    weights: dict[str, tuple[int, int]] = {}
    for _ in range(ROUNDS):
        for strategy in STRATEGIES:
            kind = "xla" if strategy.startswith("xla") else "cpu"
            ranks = pools[kind].run(2 if kind == "cpu" else 1, train, strategy, timeout_s=900)
            rates[strategy].append(ranks[0][0])
            weights[strategy] = tuple(max(rank[index] for rank in ranks) for index in (1, 2))
    for pool in pools.values():
        pool.close()
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{parameters:,} parameters, two devices; median and range of {ROUNDS} rounds of {STEPS} steps\n")
    print("| | steps per second | over ddp | MB of parameters | MB of states |\n" + "| --- " * 5 + "|")
    for strategy, own in rates.items():
        ratios = [rate / first for rate, first in zip(own, rates["ddp"])]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        held = " | ".join(f"{size / 1e6:.2f}" for size in weights[strategy])
        print(
            f"| {strategy} | {statistics.median(own):.1f} | {statistics.median(ratios):.2f} ({spread}) | {held} |"
        )


if __name__ == "__main__":
    # Workers find functions by the name of a module, not of a script.
    sys.path.insert(0, os.path.dirname(__file__))
    import xla_beside

    xla_beside.main()
