"""Bytes of parameters, gradients and optimizer states on each rank, beside what theory says.

python tests/benchmarks/strategy_memory.py
python tests/benchmarks/strategy_memory.py ddp ddp_sharded ddp_fully_sharded --processes 1 2 4

Counts the storages that are alive between backward and step (gradients) and after the step, and what the
process's memory grew by at its highest (Linux).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stratagem_trainer.module.step_module import StepModule
from torch import nn

import stratagem
from stratagem import LoopPlan, ModuleSteps

WIDTH, LAYERS, BATCH = 1024, 8, 4
MODEL_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
SPAWNED = {"start_method": "popen"}
ENGINE = {
    **SPAWNED,
    # Half a layer's parameters and more; by itself it takes some GB.
    "reduce_bucket_size": 1_000_000,
    "allgather_bucket_size": 1_000_000,
    "stage3_param_persistence_threshold": 0,
}

Theory = Callable[[int], "tuple[float, float, float]"]
"""Number of devices → which part of the model's bytes parameters, gradients and Adam's states take on each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="strategy", default=[], help=f"of {', '.join(ROWS)}")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(ROWS):
        parser.error(f"no row {unknown.pop()!r}: choose of {', '.join(ROWS)}")
    if asked.row:
        print_row(asked.rows[0], asked.processes[0])
        return
    print(f"Adam over {LAYERS} Linear({WIDTH}, {WIDTH}); MB on the fullest rank: measured, and by theory\n")
    print(
        "| strategy | devices | parameters | gradients | optimizer states | peak growth of the process |\n"
        "| --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    for name in asked.rows or ROWS:
        for devices in asked.processes:
            if devices not in ROWS[name].devices:
                continue
            # A process of its own: what an earlier run has left behind would count as there already.
            command = [sys.executable, __file__, name, "--row", "--processes", str(devices)]
            # glibc would keep what is freed.
            environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            subprocess.run(command, check=True, env=environ)


def print_row(name: str, devices: int) -> None:
    row = ROWS[name]
    runtime = stratagem.Runtime(
        strategy=row.strategy, strategy_options=row.options, accelerator="cpu", devices=devices
    )
    *sizes, peak = (max(column) for column in zip(*runtime.launch(measure, name, quiet=True)))
    cells = [
        f"{size / 1e6:.1f}, {part * MODEL_BYTES / 1e6:.1f}" for size, part in zip(sizes, row.theory(devices))
    ]
    print(f"| {name} | {devices} | {' | '.join(cells)} | {peak / 1e6:.1f} |", flush=True)


def measure(runtime: stratagem.Runtime, name: str) -> Any:
    torch.set_num_threads(1)
    train = ROWS[name].train
    train(runtime, 8)  # imports and buffers that come with any size
    # A new process begins with the peak of the one it was forked from.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    sizes = train(runtime, WIDTH)
    return runtime.collectives.gather_objects((*sizes, peak_bytes() - before))


def train_by_hand(runtime: stratagem.Runtime, width: int) -> tuple[int, int, int]:
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    module, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), foreach=False))
    for _ in range(2):
        runtime.backward(module(torch.randn(BATCH, width)).square().mean(), net)
        gradients = size_bytes(p.grad for p in net.parameters())
        optimizer.step()
        optimizer.zero_grad()
    states = (value for state in optimizer.state.values() for value in state.values())
    return size_bytes(net.parameters()), gradients, size_bytes(states)


def train_in_engine(runtime: stratagem.Runtime, width: int) -> tuple[int, int, int]:
    """Count what the engine keeps by itself; gradients between the two micro-batches of a step."""
    from deepspeed_engine import engine_bytes

    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    adam = partial(torch.optim.Adam, foreach=False)
    return engine_bytes(runtime, net, adam, torch.randn(BATCH, width))


class Stack(stratagem.Module):
    """The same net, with the loss of its step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch).square().mean()


def train_by_steps(runtime: stratagem.Runtime, width: int) -> tuple[int, int, int]:
    module = Stack(width)
    steps = StepModule(module)
    prepared = runtime.session.prepare(
        steps,
        module,
        lambda: [torch.optim.Adam(module.parameters(), foreach=False)],
        LoopPlan(),
        ModuleSteps(steps),
    )
    for index in range(2):
        prepared.forward_backward("training_step", torch.randn(BATCH, width), index)
        gradients = size_bytes(p.grad for p in module.parameters())
        prepared.step(0)
        prepared.zero_grad(0)
    states = (value for state in prepared.optimizers[0].state.values() for value in state.values())
    return size_bytes(module.parameters()), gradients, size_bytes(states)


def size_bytes(tensors: Any) -> int:
    """Size of the different storages behind this rank's parts of `tensors`."""
    local = [
        getattr(tensor, "_local_tensor", tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)
    ]
    local = [tensor for tensor in local if not tensor.is_meta]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def peak_bytes() -> int:
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@dataclass(frozen=True)
class Row:
    """A strategy, and what its ranks should keep between two steps."""

    strategy: str
    theory: Theory
    options: Mapping[str, Any] = field(default_factory=lambda: SPAWNED)
    devices: tuple[int, ...] = (1, 2, 4)
    train: Callable[[stratagem.Runtime, int], tuple[int, int, int]] = train_by_hand
    """Trains a net of a width, and counts bytes of parameters, gradients and optimizer states."""


ROWS: dict[str, Row] = {
    "single": Row("single", lambda n: (1, 1, 2), {}, (1,)),
    "dp": Row("dp", lambda n: (1, 1, 2), {}),
    "ddp2": Row("ddp2", lambda n: (1, 1, 2)),
    "ddp": Row("ddp", lambda n: (1, 1, 2)),
    "ddp_sharded": Row("ddp_sharded", lambda n: (1, 1, 2 / n)),
    "ddp_fully_sharded": Row("ddp_fully_sharded", lambda n: (1 / n, 1 / n, 2 / n)),
    "fsdp": Row("fsdp", lambda n: (1 / n, 1 / n, 2 / n), {**SPAWNED, "auto_wrap_policy": ["Linear"]}),
    "fsdp, 2 replicas": Row(
        "fsdp_hybrid",
        lambda n: (2 / n, 2 / n, 4 / n),
        {**SPAWNED, "auto_wrap_policy": ["Linear"], "device_mesh": (2, 2)},
        (4,),
    ),
    "pipeline": Row("pipeline", lambda n: (1 / n, 1 / n, 2 / n), train=train_by_steps),
    "model_parallel": Row("model_parallel", lambda n: (1 / n, 1 / n, 2 / n)),
    "model_parallel, 2 × 2": Row(
        "model_parallel",
        lambda n: (1 / n, 1 / n, 2 / n),
        {**SPAWNED, "tensor_parallel_size": 2, "auto_wrap_policy": ["Linear"]},
        (4,),
    ),
    "deepspeed, stage 0": Row(
        "deepspeed", lambda n: (1, 1, 2), {**ENGINE, "stage": 0}, train=train_in_engine
    ),
    "deepspeed_stage_1": Row("deepspeed_stage_1", lambda n: (1, 1, 3 / n), ENGINE, train=train_in_engine),
    "deepspeed_stage_2": Row("deepspeed_stage_2", lambda n: (1, 1 / n, 3 / n), ENGINE, train=train_in_engine),
    "deepspeed_stage_3": Row(
        "deepspeed_stage_3", lambda n: (1 / n, 1 / n, 3 / n), ENGINE, train=train_in_engine
    ),
}


if __name__ == "__main__":
    main()
