"""Seconds per step and memory of each trainer, in turns: python -m tests.gpu.speed --accelerator cuda"""

from __future__ import annotations

import gc
import statistics
from typing import Any

import torch

from tests.gpu.loops import LOOPS, Data, Loop, Step, available, silent
from tests.gpu.models import SIZES, batches
from tests.gpu.setting import Setting, main

ROUNDS = {"gpt2-124m": 5, "llama-1b": 3}
STEPS = {"gpt2-124m": 45, "llama-1b": 25}


def measure(setting: Setting) -> dict[str, Any]:
    """Train each size by each loop, round by round; the first round warms up and doesn't count."""
    return {name: measure_size(name, setting) for name in setting.sizes}


def measure_size(name: str, setting: Setting) -> dict[str, Any]:
    loops = available()
    steps, rounds = STEPS.get(name, 10), ROUNDS.get(name, 2)
    data = batches(name, steps, pinned=setting.has_memory)
    seconds: dict[str, list[float]] = {each: [] for each in loops}
    memory: dict[str, tuple[int, int]] = {}
    failed: dict[str, str] = {}
    for round_index in range(rounds + 1):
        # In another order each time: what warms a device up meets all alike.
        order = list(loops)[round_index % len(loops) :] + list(loops)[: round_index % len(loops)]
        for each in order:
            try:
                step = run(loops[each], name, steps, data, setting)
            except Exception as error:
                if each in LOOPS:
                    raise
                failed[each] = f"{type(error).__name__}: {error}"[:300]
                continue
            if round_index:
                seconds[each].append(step.step_s)
            memory[each] = (step.peak_bytes, step.reserved_bytes)
            del step
    plain = seconds["plain loop"]
    size = SIZES[name]
    return {
        "parameters": sum(p.numel() for p in Step(name, torch.device("meta"), 0).parameters()),
        "batch": [size.batch, size.length],
        "steps": steps,
        "rounds": rounds,
        "plain_ms": 1e3 * statistics.median(plain),
        "tokens_per_s": size.batch * size.length / statistics.median(plain),
        "failed": failed,
        "loops": {
            each: {
                "ratio": [took / base for took, base in zip(taken, plain)],
                "allocated_bytes": memory[each][0],
                "reserved_bytes": memory[each][1],
            }
            for each, taken in seconds.items()
            if taken
        },
    }


def run(loop: Loop, name: str, steps: int, data: Data, setting: Setting) -> Step:
    """Train once, from the same weights, with the memory of others given back before."""
    gc.collect()
    device = setting.device
    if setting.has_memory:
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
    step = Step(name, device, steps)
    with silent():
        loop(step, data)
    step.model = None  # type: ignore[assignment]  # its memory is needed
    return step


if __name__ == "__main__":
    main(measure)
