"""Bytes of parameters, gradients and optimizer states on each rank, by strategy and number of processes.

python tests/benchmarks/strategy_memory.py ddp ddp_sharded ddp_fully_sharded --processes 1 2 4

Counts the storages that are alive between backward and step (gradients) and after the step, and what the
process's memory grew by at its highest (Linux).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stratagem

WIDTH, LAYERS, BATCH = 1024, 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="+")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print_row(asked.strategies[0], asked.processes[0])
        return
    print(f"Adam over {LAYERS} Linear({WIDTH}, {WIDTH}); MB on the fullest rank")
    print(
        "| strategy | processes | parameters at rest | gradients | optimizer states | peak growth of the process |"
    )
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for strategy in asked.strategies:
        for processes in asked.processes:
            # A process of its own: what an earlier run has left behind would count as there already.
            command = [sys.executable, __file__, strategy, "--row", "--processes", str(processes)]
            # glibc would keep what is freed.
            environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            subprocess.run(command, check=True, env=environ)


def print_row(strategy: str, processes: int) -> None:
    runtime = stratagem.Runtime(
        strategy=strategy, strategy_options={"start_method": "popen"}, accelerator="cpu", devices=processes
    )
    ranks = runtime.launch(measure, quiet=True)
    cells = [f"{max(column) / 1e6:.1f}" for column in zip(*ranks)]
    print(f"| {strategy} | {processes} | {' | '.join(cells)} |", flush=True)


def measure(runtime: stratagem.Runtime) -> Any:
    torch.set_num_threads(1)
    train(runtime, 8)  # imports and buffers that come with any size
    # A new process begins with the peak of the one it was forked from.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    sizes = train(runtime, WIDTH)
    return runtime.collectives.gather_objects((*sizes, peak_bytes() - before))


def train(runtime: stratagem.Runtime, width: int) -> tuple[int, int, int]:
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    module, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), foreach=False))
    for _ in range(2):
        runtime.backward(module(torch.randn(BATCH, width)).square().mean(), net)
        gradients = size_bytes(p.grad for p in net.parameters())
        optimizer.step()
        optimizer.zero_grad()
    states = (value for state in optimizer.state.values() for value in state.values())
    return size_bytes(net.parameters()), gradients, size_bytes(states)


def size_bytes(tensors: Any) -> int:
    """Size of the different storages behind this rank's parts of `tensors`."""
    local = [
        getattr(tensor, "_local_tensor", tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)
    ]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def peak_bytes() -> int:
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
