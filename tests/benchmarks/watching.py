"""What a step costs that may be asked to stop, and whose rank's silence would be noticed."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from stratagem_launch import Heartbeat, PreemptionWatch, StopConditions

import stratagem

CALLS = 200_000


def measure(runtime: stratagem.Runtime, folder: str) -> None:
    """Print what each costs in this rank."""
    with PreemptionWatch(runtime.collectives, StopConditions()) as watch:
        began = time.perf_counter()
        for _ in range(CALLS):
            watch.is_due()
        asked_s = time.perf_counter() - began
    with Heartbeat(60.0, runtime.rank, runtime.world_size, folder) as heartbeat:
        began = time.perf_counter()
        for _ in range(CALLS):
            heartbeat.beat()
        beats_s = time.perf_counter() - began
    if runtime.is_main:
        each = f"{asked_s / CALLS * 1e9:.0f} ns to ask, exchanges among them"
        print(
            f"{runtime.world_size} ranks: per step {each}, {beats_s / CALLS * 1e9:.0f} ns to beat", flush=True
        )


def main() -> None:
    """Measure one rank and two."""
    with tempfile.TemporaryDirectory() as folder:
        for strategy, devices in (("single", 1), ("ddp", 2)):
            runtime: Any = stratagem.Runtime(strategy, accelerator="cpu", devices=devices)
            runtime.launch(measure, folder, quiet=True)


if __name__ == "__main__":
    main()
