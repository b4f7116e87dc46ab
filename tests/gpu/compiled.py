"""Seconds per step of the Trainer with blocks that torch.compile compiled: python -m tests.gpu.compiled"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch

from tests.gpu.loops import Step, plain, silent, trainer
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

STEPS = 45


def measure(setting: Setting) -> dict[str, Any]:
    """Train each way three times, in turns, by Trainer as by the plain loop."""
    name = setting.sizes[0]
    data = batches(name, STEPS if setting.is_cuda else 10, pinned=setting.has_memory)
    took: dict[str, list[float]] = {}
    first_s = 0.0
    for round_index in range(3):
        for compiled in (False, True):
            for way in (plain, trainer):
                gc.collect()
                step = Step(name, setting.device, len(data), compiled=compiled)
                began = time.perf_counter()
                with silent():
                    way(step, data)
                if compiled and not round_index and way is plain:
                    first_s = step.began_s - began
                key = f"{way.__name__}, {'compiled' if compiled else 'eager'}"
                took.setdefault(key, []).append(step.step_s)
                del step
    return {
        "model": name,
        "compile_s": first_s,
        "step_s": {key: statistics.median(values) for key, values in took.items()},
        "recompilations": torch._dynamo.utils.counters["recompiles"].total()
        if hasattr(torch, "_dynamo")
        else 0,
    }


if __name__ == "__main__":
    main(measure)
