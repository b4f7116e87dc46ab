"""Memory and time of the extension `activations`: peak growth of the process and seconds per step, beside none.

python tests/benchmarks/activations.py

Each mode trains the same transformer blocks, in a process of its own; the modes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from stratagem_activations import Activations
from torch import nn

from stratagem import Runtime

WIDTH, HEADS, LAYERS, BATCH, LENGTH = 256, 4, 8, 8, 256
STEPS, TURNS = 4, 3
MODES = ("none", "selective", "full")
"""Not "offload": on the CPU, activations are in host memory anyway."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.mode:
        runtime = Runtime("single", accelerator="cpu", plugins=[Activations(asked.mode)])
        print(json.dumps(runtime.launch(train, quiet=True)))
        return
    turns: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for _ in range(TURNS):
        for mode in MODES:
            turns[mode].append(_in_a_process(mode))
    print(
        f"{LAYERS} transformer blocks of width {WIDTH}, {BATCH} × {LENGTH} tokens, {TURNS} turns\n\n"
        "| mode | peak growth of the process | over none | seconds per step over none |\n"
        "| --- | --- | --- | --- |"
    )
    for mode in MODES:
        size = median(size for size, _ in turns[mode])
        saved = median(mine / plain for (mine, _), (plain, _) in zip(turns[mode], turns["none"]))
        slower = median(mine / plain for (_, mine), (_, plain) in zip(turns[mode], turns["none"]))
        print(f"| `{mode}` | {size / 2**20:.0f} MiB | {saved:.2f} | {slower:.2f} |")


def train(runtime: Runtime) -> tuple[float, float]:
    """Return by how many bytes the process grew at most, and the seconds of a step after the first."""
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True)
    net = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.01))
    before = _resident_bytes("VmRSS")
    began = 0.0
    for step in range(STEPS):
        if step == 1:
            began = time.perf_counter()
        loss = module(torch.randn(BATCH, LENGTH, WIDTH)).square().mean()
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return _resident_bytes("VmHWM") - before, (time.perf_counter() - began) / (STEPS - 1)


def _in_a_process(mode: str) -> Any:
    ended = subprocess.run(
        [sys.executable, __file__, "--mode", mode],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    return json.loads(ended.stdout.splitlines()[-1])


def _resident_bytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * float(next(line for line in lines if line.startswith(name)).split()[1])


if __name__ == "__main__":
    main()
