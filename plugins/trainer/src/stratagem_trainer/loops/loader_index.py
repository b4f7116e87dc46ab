"""Pass `dataloader_idx` to the steps and hooks that take it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

NAME = "dataloader_idx"
"""Name of the argument with the index of a batch's loader."""

MASK = "sample_mask"
"""Name of the argument that marks the samples that count, if a strategy pads batches."""


def takes_loader_index(method: Callable[..., Any]) -> Literal["always", "if several", ""]:
    """Return whether a step takes a loader index after the batch and its index; "always" if it has no default."""
    parameters = list(signature(method).parameters.values())
    if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
        return "if several"
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    taken = [each for each in parameters if each.kind in by_place and each.name != MASK]
    if len(taken) < 3:
        return ""
    return "always" if taken[2].default is Parameter.empty else "if several"


def with_loader_index(hook: Callable[..., Any], loader: int | None) -> Callable[..., Any]:
    """Bind a hook's argument `dataloader_idx`, if it has one.

    Args:
        hook: a hook of a module or a callback.
        loader: index of the loader; None for a single loader.
    """
    if NAME not in signature(hook).parameters:
        return hook
    return partial(hook, **{NAME: loader or 0})
