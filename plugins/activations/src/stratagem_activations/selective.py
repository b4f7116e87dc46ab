"""Selective recomputation: keep what is expensive to compute, and recompute the rest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from stratagem_activations.torch_private import FUSED_ATTENTION

_aten = torch.ops.aten

KEPT = FUSED_ATTENTION | frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
    }
)
"""Operations whose results are kept: matrix products, convolutions, and fused attention."""


def keep_matrix_products() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of one forward, for `torch.utils.checkpoint`'s `context_fn`."""
    contexts: tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
    contexts = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]  # torch has no types for it
    return contexts


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
