"""`dataloader_idx`, for the steps and hooks that take it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

NAME = "dataloader_idx"
"""The argument that says which of several loaders a batch is from."""

MASK = "sample_mask"
"""The argument that tells a step which samples count, where a strategy pads batches."""


def takes_loader_index(method: Callable[..., Any]) -> Literal["always", "if several", ""]:
    """Whether a step takes an index of the loader after the batch and its own: always where it has no default."""
    parameters = list(signature(method).parameters.values())
    if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
        return "if several"
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    taken = [each for each in parameters if each.kind in by_place and each.name != MASK]
    if len(taken) < 3:
        return ""
    return "always" if taken[2].default is Parameter.empty else "if several"


def with_loader_index(hook: Callable[..., Any], loader: int | None) -> Callable[..., Any]:
    """Bind a hook's `dataloader_idx`, where it takes one by this name.

    Args:
        hook: of a module or a callback.
        loader: which of several loaders; None where there is one.
    """
    if NAME not in signature(hook).parameters:
        return hook
    return partial(hook, **{NAME: loader or 0})
