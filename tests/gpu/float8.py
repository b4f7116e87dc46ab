"""Time of a step with linear layers in float8: python -m tests.gpu.float8 --accelerator cuda

The Trainer in bfloat16, the Trainer with two of the precision's recipes, and torchao's own conversion in the plain
loop, all with compiled blocks. A device that isn't a GPU emulates float8: the numbers say something there, and the
time doesn't.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from typing import Any

import stratagem
from tests.gpu.activations import KeptLosses
from tests.gpu.loops import plain, silent, trainer
from tests.gpu.models import batches
from tests.gpu.setting import Setting, main

STEPS, TURNS = 25, 2
BASE, BY_HAND = "bf16-mixed", "torchao in the plain loop"
RECIPES = ("float8", "float8-rowwise")


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Train the large model in each way, in turns; yield after each turn what was measured by then."""
    name = setting.sizes[1]
    steps = STEPS if setting.is_cuda else 10
    data = batches(name, steps, pinned=setting.has_memory)
    emulated = "" if setting.is_cuda else "-emulated"
    took: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for _ in range(TURNS):
        for way in (BASE, *(recipe + emulated for recipe in RECIPES), BY_HAND):
            if way in failed:
                continue
            gc.collect()
            step = KeptLosses(name, setting.device, steps, True)
            try:
                with silent():
                    if way == BY_HAND:
                        _convert_by_hand(step, emulate=not setting.is_cuda)
                        plain(step, data)
                    else:
                        trainer(step, data, precision=way)
            except stratagem.StratagemError as error:
                failed[way] = str(error)
                continue
            took.setdefault(way, []).append(step.step_s)
            losses[way] = [loss.item() for loss in step.losses]
            del step
        yield {"model": name, "steps": steps, "failed": failed, "ways": _found(took, losses)}


def _found(took: dict[str, list[float]], losses: dict[str, list[float]]) -> dict[str, Any]:
    return {
        way: {
            "step_s": statistics.median(seconds),
            "difference": max(
                abs(mine - base) / abs(base) for mine, base in zip(losses[way], losses[BASE], strict=True)
            ),
        }
        for way, seconds in took.items()
    }


def _convert_by_hand(step: KeptLosses, *, emulate: bool) -> None:
    """As torchao's documentation says, with the settings that `Float8("tensorwise")` has."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(step.model, config=config)


if __name__ == "__main__":
    main(measure)
