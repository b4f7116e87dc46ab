"""What torch keeps private of pruning, and callbacks need: all private names are here.

plugins/callbacks/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import prune


def pruning_mask(method: Any, values: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the next mask as torch's PruningContainer does, which prunes among what the mask before has left.

    It asks for the name of a tensor that both have, and offers no other way to give it.

    Args:
        method: a `torch.nn.utils.prune.BasePruningMethod`.
        values: of the tensor.
        before: the mask so far, of the same shape.
    """
    container: Any = prune.PruningContainer()
    method._tensor_name = container._tensor_name = "weight"
    container.add_pruning_method(method)
    mask: torch.Tensor = container.compute_mask(values, before)
    return mask
