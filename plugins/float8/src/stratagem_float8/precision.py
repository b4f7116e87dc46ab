"""`Float8`: autocast to bfloat16, with matrix products of linear layers in float8."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem import ConfigError, Precision
from stratagem.errors import PrecisionError
from stratagem_float8.converting import convert
from stratagem_float8.names import MEANINGS, RECIPES, Recipe, name_of
from stratagem_float8.selecting import Choice, select_layers

_LOG = logging.getLogger("stratagem")
_CAPABILITY = (8, 9)
"""The first GPUs with float8: Ada, and Hopper after it."""


class Float8(Precision):
    """Computes matrix products of linear layers in float8, with scales from the tensors of the moment.

    Parameters, their gradients and optimizer states stay in float32. The forward and the loss run in
    `torch.autocast` to bfloat16. A linear layer, in forward and backward, has its inputs, weights and output
    gradients scaled and rounded to float8 by torchao (`torchao.float8`). Scales are computed each time, so that
    checkpoints have nothing of them, and any other precision loads them.

    Args:
        recipe: torchao's: "tensorwise" scales each tensor once; "rowwise" scales each row; "rowwise_with_gw_hp" does,
            too, and computes gradients of weights in bfloat16. The name of a precision, as "float8-rowwise-emulated",
            stands for its recipe.
        device: of this process; None where a run gives it later.
        modules: the layers that compute in float8, of those that can: classes of modules, their names, names of
            modules, or functions of a layer and its name. A module stands for all layers in it. None takes all.
        skip: layers that don't, likewise.
        emulate: round to float8 and multiply in 32 bits, on any device: for comparing numbers, and slower than
            "bf16-mixed".

    Raises:
        ConfigError: there is no such recipe.
        PrecisionError: `device` has no float8.
    """

    compute_dtype = torch.bfloat16

    def __init__(
        self,
        recipe: Recipe | str = "tensorwise",
        device: torch.device | None = None,
        *,
        modules: Choice = None,
        skip: Choice = None,
        emulate: bool = False,
    ) -> None:
        meant, is_emulated = MEANINGS.get(recipe, (recipe, False))
        if meant not in RECIPES:
            raise ConfigError(f"recipe={recipe!r} must be one of {', '.join(RECIPES)}")
        self.recipe: Recipe = meant
        self.emulate = emulate or is_emulated
        self.name = name_of(self.recipe, self.emulate)
        self.modules, self.skip = modules, skip
        self.device = device
        if device is not None and not self.emulate:
            _refuse_device(device, self.name)

    def for_device(self, device: torch.device) -> Float8:
        """Return a copy that computes on `device`.

        Raises:
            PrecisionError: it has no float8.
        """
        if not self.emulate:
            _refuse_device(device, self.name)
        copied = copy.copy(self)
        copied.device = device
        return copied

    def convert_layers(self, module: nn.Module) -> Callable[[], None]:
        """Let linear layers compute in float8, from now on until what is returned is called.

        A layer whose numbers of inputs and outputs aren't multiples of 16 stays in bfloat16, as GPUs ask for that.

        Raises:
            ConfigError: `modules` or `skip` names nothing in `module`.
            PrecisionError: no layer is left.
        """
        selected = select_layers(module, self.modules, self.skip)
        if not selected.layers:
            raise PrecisionError(
                f"precision={self.name!r} computes nothing of {type(module).__name__} in float8: "
                f"{selected.reasons()}; use 'bf16-mixed'"
            )
        if not dist.is_initialized() or dist.get_rank() == 0:
            _LOG.info("%s: %s", self.name, selected.summary())
        return convert(selected.layers.values(), self.recipe, self.emulate)

    def autocast(self) -> AbstractContextManager[Any] | None:
        """A fresh context of bfloat16 for one forward and its loss; None before a run has given the device."""
        return None if self.device is None else torch.autocast(self.device.type, dtype=self.compute_dtype)


def _refuse_device(device: torch.device, name: str) -> None:
    if device.type != "cuda":
        why = f"{device.type} has no float8"
    elif torch.version.hip is not None:
        why = "AMD GPUs haven't been tried"
    elif (found := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        why = f"it needs compute capability 8.9 (Ada) or newer, and {device} has {found[0]}.{found[1]}"
    else:
        return
    raise PrecisionError(
        f"precision={name!r} is not available on {device}: {why}; use 'bf16-mixed', or '{name}-emulated' to compare "
        "numbers"
    )
