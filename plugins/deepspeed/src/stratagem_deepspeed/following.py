"""Chooses the class that follows the engine's way to reduce and step gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem import SetupRequest
from stratagem_deepspeed.backwards import Backwards
from stratagem_deepspeed.bf16 import Bf16Gradients
from stratagem_deepspeed.gradients import Gradients
from stratagem_deepspeed.unsharded import WholeGradients


def follow_gradients(
    engine: Any, stage: int, names: Mapping[int, str], request: SetupRequest, backwards: Backwards | None
) -> Gradients | Bf16Gradients | WholeGradients:
    """Make an engine reduce and step the same gradients as plain PyTorch.

    Args:
        engine: the DeepSpeed engine, with an optimizer.
        stage: the ZeRO stage.
        names: id of a parameter → its name.
        request: as the `setup` hook received it.
        backwards: tracks backwards in your own training loop; None in a trainer's.
    """
    if stage == 0:
        parameters = [p for group in engine.basic_optimizer.param_groups for p in group["params"]]
        return WholeGradients(engine, parameters, request.device)
    if hasattr(engine.optimizer, "bf16_groups"):
        return Bf16Gradients(engine, names, request.device, request.loop.accumulate or 1)
    return Gradients(engine, stage, names, request.device, backwards)
