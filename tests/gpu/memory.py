"""The message when the device's memory runs out: python -m tests.gpu.memory --accelerator cuda"""

from __future__ import annotations

import gc
from typing import Any

import torch

import stratagem
from tests.gpu.loops import Step, runtime, silent
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

LIMITS_GIB = (0.3, 0.8, 1.5, 4.0, 8.0)
"""Of what may be allocated: each lets the training of 124 million parameters come further."""


def measure(setting: Setting) -> dict[str, Any]:
    """Train with ever more memory; return the sentence of each limit. Without CUDA there is no limit to set."""
    messages = {}
    if setting.is_cuda:
        total = torch.cuda.get_device_properties(setting.device).total_memory
        for limit in LIMITS_GIB:
            torch.cuda.set_per_process_memory_fraction(limit * 2**30 / total)
            messages[f"{limit} GiB"] = _message(setting)
    return {"model": setting.sizes[0], "messages": messages}


def _message(setting: Setting) -> str:
    try:
        with silent():
            runtime(
                Step(setting.sizes[0], torch.device("cpu"), 2), batches(setting.sizes[0], 2), setting.device
            )
    except stratagem.StratagemError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return "trained"


if __name__ == "__main__":
    main(measure)
