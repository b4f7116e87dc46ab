"""`batch_size_of`: the number of samples in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stratagem.sdk.tensors import opened


def batch_size_of(batch: Any) -> int | None:
    """Return the number of samples in `batch`; None where it isn't known.

    Tuples, lists, mappings and dataclasses are searched in order. The result is the size of dim 0 of the first
    tensor or array that has a dimension. Without such a tensor, it is the length of the first list, or of the first
    tuple of strings.
    """
    kind = type(batch)
    if (kind is list or kind is tuple) and batch:
        # The common (inputs, targets): this runs in every training step that logs.
        first = batch[0]
        if type(first) is torch.Tensor and (shape := first.shape):
            return shape[0]
    return _size(batch)


def _size(value: Any) -> int | None:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return int(value.shape[0]) if value.ndim else None
    container = opened(value)
    if container is None:
        return None
    for item in container.items:
        if (size := _size(item)) is not None:
            return size
    if any(isinstance(item, torch.Tensor) for item in container.items):
        return None
    return len(value) if isinstance(value, list) or _is_strings(value) else None


def _is_strings(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, (str, bytes)) for item in value)
