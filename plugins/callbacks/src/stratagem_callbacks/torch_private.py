"""The private parts of torch's pruning that callbacks use. All of them are here.

plugins/callbacks/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import prune


def pruning_mask(method: Any, values: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the next mask, as torch's PruningContainer computes it: it prunes only what `before` has kept.

    The container takes only methods with its own `_tensor_name`, and has no public way to set that name.

    Args:
        method: a `torch.nn.utils.prune.BasePruningMethod`.
        values: the tensor's values.
        before: the mask so far, of the same shape.
    """
    container: Any = prune.PruningContainer()
    method._tensor_name = container._tensor_name = "weight"
    container.add_pruning_method(method)
    mask: torch.Tensor = container.compute_mask(values, before)
    return mask
