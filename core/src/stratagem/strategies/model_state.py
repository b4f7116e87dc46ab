"""Loads a module from a checkpoint, which has its tensors by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem.errors import CheckpointError

if TYPE_CHECKING:
    from stratagem.checkpoint.base import CheckpointReader


def load_model(
    original_module: nn.Module,
    targets: dict[str, torch.Tensor],
    reader: CheckpointReader,
    extra: dict[str, Any],
    names: Collection[str],
) -> None:
    """Fill `targets` ("model/<name>" → tensor) from `reader`, and give modules their extra state.

    Args:
        original_module: the module.
        targets: this rank's tensors of the module, or its shards of them.
        reader: the opened checkpoint.
        extra: name → extra state.
        names: keys of the unsharded module; the checkpoint must have exactly these.

    Raises:
        CheckpointError: keys are missing or unexpected.
    """
    saved = {key for key in reader.tensors if key.startswith("model/")}
    missing, unexpected = sorted(set(names) - saved), sorted(saved - set(names))
    if missing or unexpected:
        raise CheckpointError(
            "the checkpoint was made by another module: "
            f"missing keys: {_some(missing)}; unexpected keys: {_some(unexpected)}"
        )
    with torch.no_grad():
        reader.read(targets)
    if any(type(each).state_dict is not nn.Module.state_dict for each in original_module.modules()):
        # The user's `state_dict` may have returned copies: these have the values now, and the module doesn't.
        filled = {key.removeprefix("model/"): value for key, value in targets.items()}
        original_module.load_state_dict({**original_module.state_dict(), **filled, **extra})
    elif extra:
        # set_extra_state is only reachable through load_state_dict.
        original_module.load_state_dict({**original_module.state_dict(), **extra})


def _some(keys: list[str]) -> str:
    names = [key.split("/", 1)[1] for key in keys[:4]]
    return ", ".join(names) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "") if names else "none"
