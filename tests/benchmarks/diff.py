"""What recording a training takes, for `stratagem diff`: python tests/benchmarks/diff.py

A transformer of four layers is trained for three steps in one process: plainly, and recorded. Printed are both runs'
peak memory, and the time of all that `stratagem diff` does for two records: two recorded runs, a third one with
another rounding, and the comparison. Times and memory are those of whole processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
width = 512
layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(4))
model = nn.Sequential(nn.Embedding(8000, width), *layers, nn.Linear(width, 8000))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    tokens = torch.randint(0, 8000, (4, 128), generator=torch.Generator().manual_seed(step))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(*command: str) -> tuple[float, float]:
    """Run a command. Returns its seconds and its peak memory in MiB."""
    began = time.perf_counter()
    process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *command])
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        plain = run(str(program))
        record = ["-m", "stratagem_diff", "record", "--out"]
        a = run(*record, f"{folder}/a", str(program))
        b = run(*record, f"{folder}/b", str(program))
        rounding = run(*record, f"{folder}/r", "--rounding", str(program))
        compared = run("-m", "stratagem", "diff", f"{folder}/a", f"{folder}/b", "--rounding", f"{folder}/r")
        size = sum(file.stat().st_size for file in Path(folder, "a").rglob("*") if file.is_file())
    print(f"plain run: {plain[0]:.1f} s, {plain[1]:.0f} MiB")
    print(f"recorded run: {a[0]:.1f} s, {a[1]:.0f} MiB, {a[1] / plain[1]:.2f} times the plain run's")
    print(f"two records, rounding and comparison: {a[0] + b[0] + rounding[0] + compared[0]:.1f} s")
    print(f"comparison: {compared[0]:.1f} s, {compared[1]:.0f} MiB; a record has {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
