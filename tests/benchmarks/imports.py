"""Time of imports and of the command line's help: python tests/benchmarks/imports.py"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
PUBLIC = "from stratagem import Module, Runtime, Strategy, Trainer"


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def median(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    python = sys.executable
    script = str(Path(python).parent / "stratagem")
    figures: dict[str, list[float]] = {"help": [], "bare": [], "public": [], "python": []}
    for round_index in range(ROUNDS + 1):
        torch = seconds([python, "-c", "import torch"])
        row = {
            "help": seconds([script, "--help"]),
            "bare": seconds([python, "-c", "import stratagem"]) / torch,
            "public": seconds([python, "-c", f"import torch\n{PUBLIC}"]) / torch,
            "python": seconds([python, "-c", ""]),
        }
        for name, value in row.items():
            if round_index:  # the first is warm-up
                figures[name].append(value)
    print(f"stratagem --help: {median(figures['help'])} s; an empty Python: {median(figures['python'])} s")
    print(f"import stratagem: {median(figures['bare'])} of import torch")
    print(f"{PUBLIC}: {median(figures['public'])} of import torch")


if __name__ == "__main__":
    main()
