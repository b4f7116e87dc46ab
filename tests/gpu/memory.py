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
    """Train with ever more memory; return the sentence of each limit. On the CPU there is no limit to set."""
    messages = {}
    if setting.has_memory:
        module: Any = torch.get_device_module(setting.device)
        _, total = module.mem_get_info()
        for limit in LIMITS_GIB:
            # The small model takes less.
            scaled = limit if setting.is_cuda else limit / 4096
            module.set_per_process_memory_fraction(scaled * 2**30 / total)
            messages[f"{scaled:.4g} GiB"] = _message(setting)
        module.set_per_process_memory_fraction(1.0)
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
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
    return "trained"


if __name__ == "__main__":
    main(measure)
