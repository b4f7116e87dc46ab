"""Splits the output layer, whose outputs stay sharded by vocabulary for loss_parallel."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from stratagem import ConfigError
from stratagem_model_parallel.plan import apply
from stratagem_model_parallel.styles import style_for


def split_heads(root: nn.Module, mesh: DeviceMesh) -> None:
    """Split output layers, and embeddings that share their weight, by vocabulary.

    Finds them with transformers' `get_output_embeddings`.

    Raises:
        ConfigError: no module has one.
    """
    found = [pair for module in root.modules() if (pair := _ends(module)) is not None]
    if not found:
        raise ConfigError(
            f"loss_parallel needs a last layer that is split, and the built-in plans find none in "
            f'{type(root).__name__}: give a plan in which it has the style "logits"'
        )
    for head, embedding in dict(found).items():
        is_tied = embedding is not None and embedding.weight is head.weight
        apply(style_for("logits", "the output layer", head), head, mesh)
        if is_tied:
            apply(style_for("rowwise", "the embedding", embedding), embedding, mesh)


def _ends(module: Any) -> tuple[Any, Any] | None:
    if not hasattr(module, "get_output_embeddings"):
        return None
    head = module.get_output_embeddings()
    return None if head is None else (head, module.get_input_embeddings())
